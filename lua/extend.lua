--[[
extend: moves the end of a reservation that is alive to the later of its end and now + ttl, within a bound.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  outbox     stream of the partition
  records    hash with the reservation's record
ARGV
  tenant     the tenant's id, for the outbox entry
  id         the reservation
  ttl_ms     how long it is to live from now
  bound_ms   how long after its creation a reservation ends at the latest
REPLIES
  extended|now_ms|counts|record
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
--@include moving

local tenant_key, expiries_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tenant, id, ttl_ms, bound_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local record, claims = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)

if not is_alive(record, claims, now_ms) then
  return reply_with('illegal_transition', now_ms, record, false)
end
local latest = math.ceil((record.created + bound_ms) / 1000)
local expires = math.max(record.expires, math.min(latest, math.ceil((now_ms + ttl_ms) / 1000)))
if expires == record.expires then
  return reply_with('extended', now_ms, record, true)
end

local before = { state = record.state, expires = record.expires }
record.expires = expires
record.version = record.version + 1
append(outbox_key, tenant, id, record_text(record))
for _, claim in ipairs(claims) do
  move_units(tenant_key, expiries_key, before, claim, expires)
  if claim.is_limited then
    move_holding(claim.holdings, id, expires)
  end
end
write_claims(tenant_key, claims)
redis.call('HSET', records_key, id, record_text(record))
return reply_with('extended', now_ms, record, true)
