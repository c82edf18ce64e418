--[[
remove_pool: takes a pool that closed long ago out of Redis, with customer counters that the caller names.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
ARGV
  pool       the pool
  rev        the revision that the caller saw closed; another one is left alone
  customers… escaped names of customers whose counters go too
REPLIES
  removed
  unknown_pool
  stale
  illegal_transition
  not_ready
]]
--@include epoch
--@include pools

local tenant_key, expiries_key = KEYS[1], KEYS[2]
local name, rev = ARGV[1], ARGV[2]
local FIRST_CUSTOMER = 3

local values = redis.call('HMGET', tenant_key, '!build', name)
local build, text = values[1], values[2]
if build ~= BUILD then
  return 'not_ready'
end
if not text then
  return 'unknown_pool'
end
local stored_rev = select(2, late_and_rev(parse_pool(name, text)))
if stored_rev ~= rev then
  return 'stale'
end
-- Buckets would outlive the pool and be counted into a later one of the same name.
if first_after(expiries_key, name, 0) ~= 0 then
  return 'illegal_transition'
end
local gone = { name }
for index = FIRST_CUSTOMER, #ARGV do
  gone[#gone + 1] = name .. '||' .. ARGV[index]
end
redis.call('HDEL', tenant_key, unpack(gone))
return 'removed'
