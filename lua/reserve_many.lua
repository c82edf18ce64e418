--[[
reserve_many: grants reservations of one tenant in one run, each on its own, all claims of each or none; the same
rules as `reserve`, with what the requests share read and written once.
KEYS
  tenant      hash: build mark, pools, buckets, customer counters
  expiries    sorted set: the tenant's buckets
  outbox      stream of the partition
  records…    hash with the record of each reservation, in the order of ARGV
ARGV
  tenant      the tenant's id, for the outbox entries
  requests…   for each: number of claims, id, ttl_ms, fingerprint, tail, customer, then pool, quantity, rev of each
REPLIES (one for each reservation, in order)
  granted|created_ms|expires_s|counted
  existing|now_ms|counts|record
  id_conflict
  unknown_pool|claim
  paused|claim|available
  closed|claim|available
  not_open|claim|available|opens_ms
  customer_required|claim
  limit_reached|claim|available|held_by
  sold_out|claim|available
  all_reserved|claim|available|retry_ms
  stale|claim
  roll
  not_ready
]]
--@include epoch
--@include clock
--@include outbox
--@include pools
--@include customers
--@include reserving

local tenant_key, expiries_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local tenant = ARGV[1]
local RECORDS_BEFORE, FIRST_REQUEST, FIRST_CLAIM, CLAIM_LENGTH, FIELDS_OF_CLAIM = 3, 2, 6, 3, 3

local now_ms = read_clock(tenant_key)
local now_text = now_ms .. ''

-- One HMGET for all: the build mark, then pool, bucket and counter of each claim of each request.
local fields, wanted, at = { '!build' }, 1, FIRST_REQUEST
for _ = 1, #KEYS - RECORDS_BEFORE do
  local claims = tonumber(ARGV[at])
  local bucket, counter = '|' .. math.ceil((now_ms + ARGV[at + 2]) / 1000), '||' .. ARGV[at + 5]
  at = at + FIRST_CLAIM
  for _ = 1, claims do
    local name = ARGV[at]
    fields[wanted + 1], fields[wanted + 2], fields[wanted + 3] = name, name .. bucket, name .. counter
    wanted, at = wanted + FIELDS_OF_CLAIM, at + CLAIM_LENGTH
  end
end
local values = redis.call('HMGET', tenant_key, unpack(fields))
local replies = {}
if values[1] ~= BUILD then
  for index = 1, #KEYS - RECORDS_BEFORE do
    replies[index] = 'not_ready'
  end
  return replies
end

-- In memory until all requests are decided, since each sees what those before it took.
local pools, holdings_of, units_of, new_buckets, sweep = {}, {}, {}, {}, new_sweep()
local granted, records = {}, {}

local function pool_at(field)
  local name = fields[field]
  local pool = pools[name]
  if pool == nil then
    pool = values[field] and parse_pool(name, values[field])
    if pool and pool.first ~= 0 and pool.first * 1000 <= now_ms then
      sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
    end
    pools[name] = pool
  end
  return pool
end

local function holdings_at(field, pool, customer)
  if not (pool and pool.per_customer and customer ~= '') then
    return nil
  end
  local holdings = holdings_of[fields[field]]
  if not holdings then
    holdings = parse_holdings(values[field], pool)
    holdings_of[fields[field]] = holdings
  end
  return holdings
end

local function add_units(field, bucket, quantity)
  local units = units_of[bucket]
  if not units then
    -- After a clock that stepped back and moved the end, the bucket that was read is another one.
    units = bucket == fields[field] and values[field] or redis.call('HGET', tenant_key, bucket)
    if not units then
      units = 0
      new_buckets[#new_buckets + 1] = bucket
    end
  end
  units_of[bucket] = units + quantity
end

-- Takes the units of a request whose claims were all found good. `place` is its first argument.
local function grant(index, place, field, mine)
  local id, ttl_ms = ARGV[place + 1], ARGV[place + 2]
  local expires = math.ceil((now_ms + ttl_ms) / 1000)
  for position = 1, #mine do
    -- After a clock that stepped back, an end in seconds already swept would never be counted: the reservation
    -- then ends one second after what was swept.
    expires = math.max(expires, mine[position].swept_to + 1)
  end
  local counted, is_limited = '', false
  for position = 1, #mine do
    local pool, quantity = mine[position], ARGV[place + FIRST_CLAIM + position * CLAIM_LENGTH - 2] + 0
    pool.reserved, pool.dirty = pool.reserved + quantity, true
    if pool.first == 0 or expires < pool.first then
      pool.first = expires
    end
    add_units(field + 1, bucket_name(pool.name, expires), quantity)
    if pool.per_customer then
      is_limited = true
      hold(holdings_of[fields[field + 2]], id, quantity, expires)
    end
    counted = counted .. (pool.per_customer and '1' or '0')
    field = field + FIELDS_OF_CLAIM
  end
  counted = is_limited and counted or ''
  local times = now_text .. '|' .. expires
  records[id] = first_record(times, counted, ttl_ms, ARGV[place + 4])
  granted[#granted + 1] = index
  granted[#granted + 1] = id
  return 'granted|' .. times .. '|' .. counted
end

local function decide(index, place, field, claims)
  local id, customer = ARGV[place + 1], ARGV[place + 5]
  local text = records[id] or redis.call('HGET', KEYS[RECORDS_BEFORE + index], id)
  local mine = {}
  for position = 1, claims do
    local claim_field, claim_place = field + (position - 1) * FIELDS_OF_CLAIM, place + FIRST_CLAIM
      + (position - 1) * CLAIM_LENGTH
    local pool = pool_at(claim_field)
    mine[position] = pool
    if not text then
      local holdings = holdings_at(claim_field + 2, pool, customer)
      local reply = refused(pool, position, ARGV[claim_place + 1] + 0, ARGV[claim_place + 2], holdings, now_ms)
      if reply then
        return reply
      end
    end
  end
  return text and answer_existing(text, ARGV[place + 3], mine, now_ms) or grant(index, place, field, mine)
end

local place, field = FIRST_REQUEST, 2
for index = 1, #KEYS - RECORDS_BEFORE do
  local claims = tonumber(ARGV[place])
  replies[index] = decide(index, place, field, claims)
  place, field = place + FIRST_CLAIM + claims * CLAIM_LENGTH, field + claims * FIELDS_OF_CLAIM
end

for position = 2, #granted, 2 do
  append(outbox_key, tenant, granted[position], records[granted[position]])
end
delete_swept(sweep, tenant_key, expiries_key)
local changes = {}
for name, pool in pairs(pools) do
  if pool and pool.dirty then
    changes[#changes + 1] = name
    changes[#changes + 1] = pool_text(pool)
  end
end
for bucket, units in pairs(units_of) do
  changes[#changes + 1] = bucket
  changes[#changes + 1] = units
end
for counter, holdings in pairs(holdings_of) do
  if holdings.dirty then
    changes[#changes + 1] = counter
    changes[#changes + 1] = holdings_text(holdings)
  end
end
if #changes > 0 then
  redis.call('HSET', tenant_key, unpack(changes))
end
for position = 1, #new_buckets do
  redis.call('ZADD', expiries_key, 0, new_buckets[position])
end
for position = 1, #granted, 2 do
  local id = granted[position + 1]
  redis.call('HSET', KEYS[RECORDS_BEFORE + granted[position]], id, records[id])
end
return replies
