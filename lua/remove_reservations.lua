--[[
remove_reservations: takes records that ended long ago out of Redis, from what Postgres has committed.
KEYS
  tenant       hash: build mark, pools, buckets, customer counters
  records      hash: one shard of the tenant's records
ARGV
  retention_ms how long a record stays after its end
  records…     for each: id and the version that Postgres holds; another version is left alone
REPLIES
  removed|count
  not_ready
]]
--@include epoch
--@include clock
--@include pools
--@include customers
--@include settled_customers
--@include records

local tenant_key, records_key = KEYS[1], KEYS[2]
local retention_ms = tonumber(ARGV[1])
local FIRST_RECORD = 2

if redis.call('HGET', tenant_key, '!build') ~= BUILD then
  return 'not_ready'
end
local now_ms = read_clock(tenant_key)

local function ended_at(record)
  if record.state == 'C' then
    return tonumber(record.completed)
  end
  return record.state == 'R' and record.expires * 1000 or tonumber(record.ended)
end

-- A holding of a reservation that expired stays in its counter until somebody looks; now nobody will.
local function forget_holdings(id, record)
  for _, claim in ipairs((load_claims(tenant_key, record))) do
    if claim.is_limited and record.state == 'R' then
      drop_holding(claim.holdings, id)
      write_holdings(tenant_key, claim.counter, claim.holdings)
    end
  end
end

local removed = 0
for index = FIRST_RECORD, #ARGV, 2 do
  local id, version = ARGV[index], tonumber(ARGV[index + 1])
  local text = redis.call('HGET', records_key, id)
  local record = text and parse_record(text)
  if record and record.version == version and ended_at(record) + retention_ms <= now_ms then
    forget_holdings(id, record)
    redis.call('HDEL', records_key, id)
    removed = removed + 1
  end
end
return 'removed|' .. removed
