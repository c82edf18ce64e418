--[[
hold: keeps the units of a reservation whose money is on its way, and takes them again where it has ended meanwhile.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  outbox     stream of the partition
  records    hash with the reservation's record
ARGV
  tenant     the tenant's id, for the outbox entry
  id         the reservation
  ttl_ms     how long it is to live from now
  settlement the stored settlement that asks for this; with one, an entry is written whatever happens
REPLIES
  held|now_ms|counts|record
  not_held|now_ms|counts|record
  already_completed|now_ms|counts|record
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
--@include moving

local tenant_key, expiries_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tenant, id, ttl_ms, settlement = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

local record, claims, text = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)

-- The outcome without a change of units; the entry is written where a settlement waits for it.
local function answer(outcome)
  if settlement ~= '' then
    append(outbox_key, tenant, id, text, settlement, outcome, '')
  end
  return reply_with(outcome, now_ms, record, is_alive(record, claims, now_ms))
end

-- Whether the customer may hold a claim's units again beside what was completed and is held otherwise by now.
local function is_within_limit(claim)
  local limit = claim.is_limited and claim.pool.per_customer
  if not limit then
    return true
  end
  local units = claim.holdings.completed + claim.quantity
  for index = 1, #claim.holdings do
    local holding = claim.holdings[index]
    if holding.id ~= id and tonumber(holding.second) > claim.pool.swept_to then
      units = units + holding.quantity
    end
  end
  return units <= limit
end

-- Neither status nor window is asked: the buyer was in time when the units were reserved.
local function is_room_for_all()
  for _, claim in ipairs(claims) do
    if not claim.pool or excess(record, claim) > 0 or not is_within_limit(claim) then
      return false
    end
  end
  return true
end

-- Writes the transition to a new end, entry first; `keep` says what becomes of a limited claim's holding.
local function hold_until(expires, sweep, keep)
  local before = { state = record.state, expires = record.expires }
  record.expires = expires
  record.version = record.version + 1
  append(outbox_key, tenant, id, record_text(record), settlement, 'held', '')
  delete_swept(sweep, tenant_key, expiries_key)
  for _, claim in ipairs(claims) do
    move_units(tenant_key, expiries_key, before, claim, expires)
    if claim.is_limited then
      keep(claim)
    end
  end
  write_claims(tenant_key, claims)
  redis.call('HSET', records_key, id, record_text(record))
  return reply_with('held', now_ms, record, true)
end

if record.state ~= 'R' then
  return answer(record.state == 'C' and 'already_completed' or 'not_held')
end
local sweep = new_sweep()
local expires = math.max(record.expires, math.ceil((now_ms + ttl_ms) / 1000))
if is_alive(record, claims, now_ms) then
  if expires == record.expires then
    return answer('held')
  end
  return hold_until(expires, sweep, function(claim)
    move_holding(claim.holdings, id, expires)
  end)
end

if not sweep_claims(sweep, tenant_key, expiries_key, claims, now_ms) then
  delete_swept(sweep, tenant_key, expiries_key)
  write_claims(tenant_key, claims)
  return 'roll'
end
if not is_room_for_all() then
  local reply = answer('not_held')
  delete_swept(sweep, tenant_key, expiries_key)
  write_claims(tenant_key, claims)
  return reply
end
-- Where the clock has stepped back, an end that a pool was swept past already would never count.
for _, claim in ipairs(claims) do
  expires = math.max(expires, claim.pool.swept_to + 1)
end
return hold_until(expires, sweep, function(claim)
  drop_holding(claim.holdings, id)
  hold(claim.holdings, id, claim.quantity, expires)
end)
