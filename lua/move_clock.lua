--[[
move_clock: moves the test clock of one tenant forward; only the sandbox's scripts read it.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
ARGV
  offset     ms ahead of the server's clock; a smaller one than the stored changes nothing
REPLIES
  defined
  not_ready
]]
--@include epoch

local tenant_key = KEYS[1]
local offset = tonumber(ARGV[1])

local values = redis.call('HMGET', tenant_key, '!build', '!clock')
if values[1] ~= BUILD then
  return 'not_ready'
end
if offset > tonumber(values[2] or 0) then
  redis.call('HSET', tenant_key, '!clock', offset)
end
return 'defined'
