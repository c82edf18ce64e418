--[[
release: gives a reserved reservation's units back. A completed one is never un-sold by it.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  outbox     stream of the partition
  records    hash with the reservation's record
ARGV
  tenant     the tenant's id, for the outbox entry
  id         the reservation
  settlement the stored settlement that asks for this; with one, an entry is written whatever happens
REPLIES
  released|now_ms|counts|record
  already_released|now_ms|counts|record
  already_completed|now_ms|counts|record
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

local tenant_key, expiries_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tenant, id, settlement = ARGV[1], ARGV[2], ARGV[3]

local record, claims, text = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)

if record.state ~= 'R' then
  local outcome = ({ L = 'already_released', C = 'already_completed', X = 'illegal_transition' })[record.state]
  if settlement ~= '' then
    append(outbox_key, tenant, id, text, settlement, outcome, '')
  end
  return reply_with(outcome, now_ms, record, false)
end

local before = { state = record.state, expires = record.expires }
record.state = 'L'
record.ended = now_ms
record.version = record.version + 1
append(outbox_key, tenant, id, record_text(record), settlement, 'released', '')
for _, claim in ipairs(claims) do
  uncount(tenant_key, expiries_key, before, claim)
  if claim.is_limited then
    drop_holding(claim.holdings, id)
  end
end
write_claims(tenant_key, claims)
redis.call('HSET', records_key, id, record_text(record))
return reply_with('released', now_ms, record, false)
