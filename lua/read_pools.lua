--[[
read_pools: pools as they stand now; due buckets are swept on the way.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
ARGV
  pools…     one pool each
REPLIES (one for each pool, in order)
  found|pool
  unknown_pool
  roll
  not_ready
]]
--@include epoch
--@include clock
--@include pools

local tenant_key, expiries_key = KEYS[1], KEYS[2]
local names = ARGV

local now_ms = read_clock(tenant_key)
local sweep = { left = SWEEP_BUDGET, buckets = {} }
local values = redis.call('HMGET', tenant_key, '!build', unpack(names))
local is_ready = values[1] == BUILD
local replies, changes = {}, {}
for index, name in ipairs(names) do
  local text = values[index + 1]
  if not is_ready then
    replies[index] = 'not_ready'
  elseif not text then
    replies[index] = 'unknown_pool'
  else
    local pool = parse_pool(name, text)
    sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
    if pool.dirty then
      changes[#changes + 1] = name
      changes[#changes + 1] = pool_text(pool)
    end
    replies[index] = pool.more and 'roll' or 'found|' .. pool_text(pool)
  end
end
delete_swept(sweep, tenant_key, expiries_key)
if #changes > 0 then
  redis.call('HSET', tenant_key, unpack(changes))
end
return replies
