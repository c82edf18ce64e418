--[[
cancel: takes a completed reservation back, a separate act of the seller, with or without restock. Without it the
units stay sold, and keep counting against the customer's limit.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  outbox     stream of the partition
  records    hash with the reservation's record
ARGV
  tenant     the tenant's id, for the outbox entry
  id         the reservation
  restock    1 when the units may be sold again, else empty
  settlement the stored settlement that asks for this; with one, an entry is written whatever happens
REPLIES
  cancelled|now_ms|counts|record
  already_cancelled|now_ms|counts|record
  illegal_transition|now_ms|counts|record
  unknown_reservation
  not_ready
]]
--@include epoch
--@include clock
--@include outbox
--@include pools
--@include customers
--@include settled_customers
--@include records
--@include transition

local tenant_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3]
local tenant, id, restock, settlement = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local record, claims, text = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)

if record.state ~= 'C' then
  local outcome = record.state == 'X' and 'already_cancelled' or 'illegal_transition'
  if settlement ~= '' then
    append(outbox_key, tenant, id, text, settlement, outcome, record.payment)
  end
  return reply_with(outcome, now_ms, record, is_alive(record, claims, now_ms))
end

record.state = 'X'
record.ended = now_ms
record.restocked = restock
record.version = record.version + 1
append(outbox_key, tenant, id, record_text(record), settlement, 'cancelled', record.payment)
if restock == '1' then
  for _, claim in ipairs(claims) do
    if claim.pool then
      claim.pool.completed, claim.pool.kept = math.max(0, claim.pool.completed - claim.quantity), nil
    end
    if claim.is_limited then
      claim.holdings.completed = math.max(0, claim.holdings.completed - claim.quantity)
      claim.holdings.dirty = true
    end
  end
  write_claims(tenant_key, claims)
end
redis.call('HSET', records_key, id, record_text(record))
return reply_with('cancelled', now_ms, record, false)
