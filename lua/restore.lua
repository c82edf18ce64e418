--[[
restore: puts the record of an ended or expired reservation back from Postgres, for a settlement that comes late.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  records    hash with the reservation's record
ARGV
  id         the reservation
  record     its record, as Postgres holds it
REPLIES
  restored
  existing
  illegal_transition
  roll
  not_ready
]]
--@include epoch
--@include clock
--@include pools
--@include customers
--@include settled_customers
--@include records

local tenant_key, expiries_key, records_key = KEYS[1], KEYS[2], KEYS[3]
local id, text = ARGV[1], ARGV[2]

local record = parse_record(text)
local claims, build = load_claims(tenant_key, record)
if build ~= BUILD then
  return 'not_ready'
end
if redis.call('HEXISTS', records_key, id) == 1 then
  return 'existing'
end
local now_ms = read_clock(tenant_key)
-- One that is alive has units in its pools, and those only a rebuild can count.
if record.state == 'R' and record.expires * 1000 > now_ms then
  return 'illegal_transition'
end
local sweep = { left = SWEEP_BUDGET, buckets = {} }
local is_swept = true
if record.state == 'R' then
  for _, claim in ipairs(claims) do
    if claim.pool then
      sweep_pool(sweep, tenant_key, expiries_key, claim.pool, now_ms)
      is_swept = is_swept and not claim.pool.more
    end
  end
end
delete_swept(sweep, tenant_key, expiries_key)
for _, claim in ipairs(claims) do
  if claim.pool then
    -- Past this reservation's end nothing of it can be taken for counted, even if others ended in its second.
    if is_swept and record.state == 'R' then
      claim.pool.swept_to, claim.pool.kept = math.max(claim.pool.swept_to, record.expires), nil
    end
    redis.call('HSET', tenant_key, claim.name, pool_text(claim.pool))
  end
end
if not is_swept then
  return 'roll'
end
redis.call('HSET', records_key, id, text)
return 'restored'
