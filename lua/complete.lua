--[[
complete: a payment (or the seller's word) completes a reservation. The only way to `completed`.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  outbox     stream of the partition
  records    hash with the reservation's record
ARGV
  tenant     the tenant's id, for the outbox entry
  id         the reservation
  payment    what paid, escaped; empty when nothing did
  settlement the stored settlement that asks for this; with one, an entry is written whatever happens
REPLIES
  completed|now_ms|counts|record
  already_completed|now_ms|counts|record
  duplicate_payment|now_ms|counts|record
  refund_due|now_ms|counts|record
  illegal_transition|now_ms|counts|record
  unknown_reservation
  roll
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
--@include late

local tenant_key, expiries_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tenant, id, payment, settlement = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local record, claims = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)

-- The outcome without a change of units; the entry is written where a settlement waits for it.
local function answer(outcome)
  if settlement ~= '' then
    append(outbox_key, tenant, id, record_text(record), settlement, outcome, payment)
  end
  return reply_with(outcome, now_ms, record, is_alive(record, claims, now_ms))
end

local sweep = new_sweep()

local STRICTNESS = { h = 1, f = 2, r = 3 }

-- Whether the strictest policy among the pools gives the money back.
local function is_refund_due(over)
  local strictest = 'h'
  for _, claim in ipairs(claims) do
    if claim.pool and STRICTNESS[claim.late] > STRICTNESS[strictest] then
      strictest = claim.late
    end
  end
  return strictest == 'r' or (strictest == 'f' and over > 0)
end

local function write(outcome)
  record.version = record.version + 1
  append(outbox_key, tenant, id, record_text(record), settlement, outcome, payment)
end

local function refuse_late_payment()
  refuse_payment(record, payment)
  local was_reserved = record.state == 'R'
  if was_reserved then
    record.ended = now_ms
  end
  local before = { state = record.state, expires = record.expires }
  record.state = 'L'
  write('refund_due')
  delete_swept(sweep, tenant_key, expiries_key)
  for _, claim in ipairs(claims) do
    uncount(tenant_key, expiries_key, before, claim)
    if claim.is_limited and was_reserved then
      drop_holding(claim.holdings, id)
    end
  end
  write_claims(tenant_key, claims)
  redis.call('HSET', records_key, id, record_text(record))
  return reply_with('refund_due', now_ms, record, false)
end

local function complete(is_late, over)
  local before = { state = record.state, expires = record.expires }
  local counted = {}
  for position, claim in ipairs(claims) do
    local is_limited = claim.is_limited or (claim.pool and claim.pool.per_customer ~= nil and record.customer ~= '')
    counted[position] = is_limited and '1' or '0'
    if is_limited then
      drop_holding(claim.holdings, id)
      claim.holdings.completed = claim.holdings.completed + claim.quantity
    end
  end
  record.state = 'C'
  record.completed = now_ms
  record.payment = payment
  record.late = is_late and '1' or ''
  record.over = over
  record.counted = table.concat(counted)
  write('completed')
  delete_swept(sweep, tenant_key, expiries_key)
  for _, claim in ipairs(claims) do
    uncount(tenant_key, expiries_key, before, claim)
    if claim.pool then
      claim.pool.completed, claim.pool.kept = claim.pool.completed + claim.quantity, nil
    end
  end
  write_claims(tenant_key, claims)
  redis.call('HSET', records_key, id, record_text(record))
  return reply_with('completed', now_ms, record, false)
end

if is_refused_payment(record, payment) then
  return answer('refund_due')
end
if record.state == 'C' then
  local is_same = payment == '' or payment == record.payment
  return answer(is_same and 'already_completed' or 'duplicate_payment')
end
if record.state == 'X' then
  if payment == '' then
    return answer('illegal_transition')
  end
  if payment == record.payment then
    return answer('already_completed')
  end
  refuse_payment(record, payment)
  write('refund_due')
  redis.call('HSET', records_key, id, record_text(record))
  return reply_with('refund_due', now_ms, record, false)
end
if is_alive(record, claims, now_ms) then
  return complete(false, 0)
end
if not sweep_claims(sweep, tenant_key, expiries_key, claims, now_ms) then
  delete_swept(sweep, tenant_key, expiries_key)
  write_claims(tenant_key, claims)
  return 'roll'
end
local over = 0
for _, claim in ipairs(claims) do
  over = math.max(over, excess(record, claim))
end
if is_refund_due(over) then
  return refuse_late_payment()
end
return complete(true, over)
