--[[
reserve: grants reservations of one tenant, all claims of each or none; each on its own.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  expiries   sorted set: the tenant's buckets
  outbox     stream of the partition
  records…   hash with the record of each reservation, in the order of ARGV
ARGV
  tenant     the tenant's id, for the outbox entry
  count      number of reservations
  requests…  for each: id, ttl_ms, fingerprint, tail, customer, number of claims, then pool, quantity, rev each
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

local tenant_key, expiries_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local RECORDS_BEFORE = 3
local tenant, count = ARGV[1], tonumber(ARGV[2])
local FIRST_REQUEST, REQUEST_LENGTH, CLAIM_LENGTH = 3, 6, 3

local now_ms = read_clock(tenant_key)

-- All that any request may need of the tenant hash, in one HMGET: pool, bucket and counter for each claim.
local fields, ends, wanted, at = { '!build' }, {}, 1, FIRST_REQUEST
for index = 1, count do
  local expires = math.ceil((now_ms + ARGV[at + 1]) / 1000)
  local bucket_suffix, counter_suffix = '|' .. expires, '||' .. ARGV[at + 4]
  ends[index] = expires
  local claims = ARGV[at + 5]
  at = at + REQUEST_LENGTH
  for _ = 1, claims do
    local name = ARGV[at]
    fields[wanted + 1], fields[wanted + 2], fields[wanted + 3] = name, name .. bucket_suffix, name .. counter_suffix
    wanted, at = wanted + 3, at + CLAIM_LENGTH
  end
end
local values = redis.call('HMGET', tenant_key, unpack(fields))
local replies = {}
if values[1] ~= BUILD then
  for index = 1, count do
    replies[index] = 'not_ready'
  end
  return replies
end

local sweep = { left = SWEEP_BUDGET, buckets = {} }
-- In memory until all requests are decided: pools by name, units of new and touched buckets, holdings of customers.
local pools, units_of, holdings_of = {}, {}, {}
local new_buckets = {}

local function pool_at(field)
  local name = fields[field]
  local pool = pools[name]
  if pool == nil then
    local text = values[field]
    pool = text and parse_pool(name, text)
    if pool then
      sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
    end
    pools[name] = pool
  end
  return pool
end

local function holdings_at(field, pool)
  local holdings = holdings_of[fields[field]]
  if not holdings then
    holdings = parse_holdings(values[field])
    drop_expired(holdings, pool, now_ms)
    holdings_of[fields[field]] = holdings
  end
  return holdings
end

-- What a pool with a window, a status or a customer limit refuses with, or nil.
local function refused_by_rules(pool, position, quantity, rev, customer, counter_field)
  local status, opens, closes, per_customer, _, pool_rev = parse_rules(pool)
  if rev ~= '0' and rev ~= pool_rev then
    return 'stale|' .. position
  end
  local where = '|' .. position .. '|' .. (pool.cap and math.max(0, pool.cap - pool.completed - pool.reserved) or '')
  if status == 'p' then
    return 'paused' .. where
  end
  if status == 'c' or (closes and now_ms >= closes) then
    return 'closed' .. where
  end
  if opens and now_ms < opens then
    return 'not_open' .. where .. '|' .. opens
  end
  pool.is_limited = per_customer ~= nil
  if per_customer then
    if customer == '' then
      return 'customer_required|' .. position
    end
    local holdings = holdings_at(counter_field, pool)
    if holdings.held + quantity > per_customer then
      return 'limit_reached' .. where .. '|' .. (holdings[1] and holdings[1].id or '')
    end
  end
  return nil
end

-- Nil when the claim can be granted. The order of the checks is the precedence of refusals.
local function refused(pool, position, quantity, rev, customer, counter_field)
  if not pool then
    return 'unknown_pool|' .. position
  end
  if rev ~= '0' or not pool.is_plain then
    local reply = refused_by_rules(pool, position, quantity, rev, customer, counter_field)
    if reply then
      return reply
    end
  end
  local cap = pool.cap
  if not cap or pool.completed + pool.reserved + quantity <= cap then
    return nil
  end
  local where = '|' .. position .. '|' .. math.max(0, cap - pool.completed - pool.reserved)
  if pool.completed + quantity > cap then
    return 'sold_out' .. where
  end
  -- With due buckets left over the count is too high to refuse on.
  return pool.more and 'roll' or 'all_reserved' .. where .. '|' .. pool.first * 1000
end

-- Units of a bucket, from memory or as read. A bucket that was not foreseen, after a clock that stepped back and
-- moved the end, is read now.
local function add_units(field, name, expires, quantity)
  local bucket = bucket_name(name, expires)
  local units = units_of[bucket]
  if not units then
    units = fields[field] == bucket and values[field] or redis.call('HGET', tenant_key, bucket)
    if not units then
      units = 0
      new_buckets[#new_buckets + 1] = bucket
    end
  end
  units_of[bucket] = units + quantity
end

local function answer_existing(text, fingerprint, field, claims)
  local state, expires, stored_fingerprint = string.match(text,
    '^(%a)|%d+|%d+|(%d+)|%d*|%d*|%d?|%d*|%d?|%d*|[^|]*|[^|]*|%d+|(%x+)|')
  if stored_fingerprint ~= fingerprint then
    return 'id_conflict'
  end
  expires = tonumber(expires)
  local counts = state == 'R' and expires * 1000 > now_ms
  for _ = 1, claims do
    local pool = pool_at(field)
    counts = counts and pool and expires > pool.swept_to
    field = field + 3
  end
  return 'existing|' .. now_ms .. '|' .. (counts and '1' or '0') .. '|' .. text
end

local granted, records = {}, {}

-- Takes the units in memory and writes the record; all claims of the request were found good.
local function grant(index, request, field, claims)
  local id, ttl, tail, expires = ARGV[request], ARGV[request + 1], ARGV[request + 3], ends[index]
  -- After a clock that stepped back, an end in seconds already swept would never be counted: the reservation
  -- then ends one second after what was swept.
  for claim = 0, claims - 1 do
    expires = math.max(expires, pools[fields[field + claim * 3]].swept_to + 1)
  end
  local counted, is_limited = '', false
  for claim = 0, claims - 1 do
    local name, quantity = fields[field], ARGV[request + REQUEST_LENGTH + claim * CLAIM_LENGTH + 1] + 0
    local pool = pools[name]
    pool.reserved, pool.dirty = pool.reserved + quantity, true
    if pool.first == 0 or expires < pool.first then
      pool.first = expires
    end
    add_units(field + 1, name, expires, quantity)
    if pool.is_limited then
      hold(holdings_of[fields[field + 2]], id, quantity, expires)
      is_limited = true
    end
    counted = counted .. (pool.is_limited and '1' or '0')
    field = field + 3
  end
  local reply = now_ms .. '|' .. expires .. '|'
  counted = is_limited and counted or ''
  granted[#granted + 1] = index
  granted[#granted + 1] = id
  records[id] = 'R|1|' .. reply .. '|||||' .. counted .. '|||' .. ttl .. '|' .. tail
  return 'granted|' .. reply .. counted
end

local function decide(index, request, field)
  local id, customer, claims = ARGV[request], ARGV[request + 4], tonumber(ARGV[request + 5])
  local text = records[id] or redis.call('HGET', KEYS[RECORDS_BEFORE + index], id)
  if text then
    return answer_existing(text, ARGV[request + 2], field, claims), claims
  end
  for claim = 0, claims - 1 do
    local place = request + REQUEST_LENGTH + claim * CLAIM_LENGTH
    local reply = refused(pool_at(field + claim * 3), claim + 1, ARGV[place + 1] + 0, ARGV[place + 2], customer,
      field + claim * 3 + 2)
    if reply then
      return reply, claims
    end
  end
  return grant(index, request, field, claims), claims
end

local request, field = FIRST_REQUEST, 2
for index = 1, count do
  local claims
  replies[index], claims = decide(index, request, field)
  request, field = request + REQUEST_LENGTH + claims * CLAIM_LENGTH, field + claims * 3
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
