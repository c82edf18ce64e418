-- The server's clock in milliseconds plus the test clock's offset, which only the sandbox's scripts obey.
local function read_clock(tenant_key)
  local time = redis.call('TIME')
  local offset = redis.call('HGET', tenant_key, '!clock') or 0
  return time[1] * 1000 + math.floor(time[2] / 1000) + offset
end
