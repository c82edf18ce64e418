-- The server's clock in milliseconds. Called once per script: on Redis 7.0 and older, two TIME calls
-- in one script can differ.
local function read_clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
