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
--@include records

local tenant_key, expiries_key, outbox_key = KEYS[1], KEYS[2], KEYS[3]
local RECORDS_BEFORE = 3
local tenant, count = ARGV[1], tonumber(ARGV[2])

local now_ms = read_clock(tenant_key)
local sweep = { left = SWEEP_BUDGET, buckets = {} }
local requests, pools, counters, buckets = {}, {}, {}, {}

-- Reads every request, and in one HMGET all that any of them may need of the tenant hash.
local function read_requests()
  local fields, seen, at = { '!build' }, {}, 3
  local function want(field)
    if not seen[field] then
      seen[field] = true
      fields[#fields + 1] = field
    end
  end
  for index = 1, count do
    local request = { id = ARGV[at], ttl = ARGV[at + 1], fingerprint = ARGV[at + 2], tail = ARGV[at + 3],
      customer = ARGV[at + 4], claims = {} }
    local expires = math.ceil((now_ms + request.ttl) / 1000)
    local claims = tonumber(ARGV[at + 5])
    at = at + 6
    for position = 1, claims do
      local name = ARGV[at]
      local claim = { name = name, quantity = tonumber(ARGV[at + 1]), rev = ARGV[at + 2] }
      at = at + 3
      want(name)
      want(bucket_name(name, expires))
      if request.customer ~= '' then
        claim.counter = customer_field(name, request.customer)
        want(claim.counter)
      end
      request.claims[position] = claim
    end
    request.expires = expires
    requests[index] = request
  end
  return fields, redis.call('HMGET', tenant_key, unpack(fields))
end

local fields, values = read_requests()
if values[1] ~= BUILD then
  local replies = {}
  for index = 1, count do
    replies[index] = 'not_ready'
  end
  return replies
end
local stored = {}
for index = 2, #fields do
  stored[fields[index]] = values[index]
end

local function pool_named(name)
  local pool = pools[name]
  if pool == nil then
    pool = stored[name] and parse_pool(name, stored[name]) or false
    pools[name] = pool
    if pool then
      sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
    end
  end
  return pool
end

local function holdings_of(claim, pool)
  local holdings = counters[claim.counter]
  if not holdings then
    holdings = parse_holdings(stored[claim.counter])
    drop_expired(holdings, pool, now_ms)
    counters[claim.counter] = holdings
  end
  return holdings
end

-- Nil when the claim can be granted, else the reply that refuses it. The order is the precedence of refusals.
local function refusal(request, claim, position)
  local pool = pool_named(claim.name)
  if not pool then
    return 'unknown_pool|' .. position
  end
  if claim.rev ~= '0' and claim.rev ~= pool.rev then
    return 'stale|' .. position
  end
  local where = '|' .. position .. '|' .. (available_units(pool) or '')
  if pool.status == 'p' then
    return 'paused' .. where
  end
  if pool.status == 'c' or (pool.closes and now_ms >= pool.closes) then
    return 'closed' .. where
  end
  if pool.opens and now_ms < pool.opens then
    return 'not_open' .. where .. '|' .. string.format('%.0f', pool.opens)
  end
  if pool.per_customer then
    if request.customer == '' then
      return 'customer_required|' .. position
    end
    local holdings = holdings_of(claim, pool)
    local held = holdings.completed
    for index = 1, #holdings do
      held = held + holdings[index].quantity
    end
    if held + claim.quantity > pool.per_customer then
      return 'limit_reached' .. where .. '|' .. (holdings[1] and holdings[1].id or '')
    end
  end
  if pool.cap and pool.completed + claim.quantity > pool.cap then
    return 'sold_out' .. where
  end
  if pool.cap and pool.completed + pool.reserved + claim.quantity > pool.cap then
    -- With due buckets left over the count is too high to refuse on.
    return pool.more and 'roll' or 'all_reserved' .. where .. '|' .. string.format('%.0f', pool.first * 1000)
  end
  return nil
end

local function first_refusal(request)
  for position = 1, #request.claims do
    local refused = refusal(request, request.claims[position], position)
    if refused then
      return refused
    end
  end
  return nil
end

-- After a clock that stepped back, an end that lies in seconds already swept would never be counted: the
-- reservation then ends a second after what was swept.
local function end_after_sweeps(request)
  for _, claim in ipairs(request.claims) do
    request.expires = math.max(request.expires, pool_named(claim.name).swept_to + 1)
  end
end

-- Units of a bucket in memory. One that read_requests did not foresee, after a clock that stepped back, is read now.
local function bucket_units(bucket)
  if buckets[bucket] == nil then
    local units = stored[bucket]
    if units == nil then
      units = redis.call('HGET', tenant_key, bucket)
    end
    buckets[bucket] = { units = tonumber(units) or 0, is_new = not units }
  end
  return buckets[bucket]
end

local function grant(request)
  end_after_sweeps(request)
  local counted, is_limited = {}, false
  for position, claim in ipairs(request.claims) do
    local pool = pool_named(claim.name)
    pool.reserved = pool.reserved + claim.quantity
    pool.dirty = true
    if pool.first == 0 or request.expires < pool.first then
      pool.first = request.expires
    end
    local bucket = bucket_units(bucket_name(claim.name, request.expires))
    bucket.units = bucket.units + claim.quantity
    counted[position] = pool.per_customer and '1' or '0'
    if pool.per_customer then
      is_limited = true
      local holdings = holdings_of(claim, pool)
      holdings[#holdings + 1] = { id = request.id, quantity = claim.quantity, second = request.expires }
      holdings.dirty = true
    end
  end
  request.counted = is_limited and table.concat(counted) or ''
  local created, expires = string.format('%.0f', now_ms), string.format('%.0f', request.expires)
  request.record = 'R|1|' .. created .. '|' .. expires .. '||||||' .. request.counted .. '|||' .. request.ttl .. '|'
    .. request.tail
  return 'granted|' .. created .. '|' .. expires .. '|' .. request.counted
end

local function answer_existing(request, text)
  local record = parse_record(text)
  if record.fingerprint ~= request.fingerprint then
    return 'id_conflict'
  end
  local counts = record.state == 'R' and record.expires * 1000 > now_ms
  for _, claim in ipairs(request.claims) do
    local pool = pool_named(claim.name)
    counts = counts and pool and record.expires > pool.swept_to
  end
  return 'existing|' .. string.format('%.0f', now_ms) .. '|' .. (counts and '1' or '0') .. '|' .. text
end

local replies, granted = {}, {}
for index = 1, count do
  local request = requests[index]
  local twin = granted[request.id]
  local text = twin and twin.record or redis.call('HGET', KEYS[RECORDS_BEFORE + index], request.id)
  if text then
    replies[index] = answer_existing(request, text)
  else
    replies[index] = first_refusal(request)
    if not replies[index] then
      replies[index] = grant(request)
      request.records_key = KEYS[RECORDS_BEFORE + index]
      granted[request.id] = request
      granted[#granted + 1] = request
    end
  end
end

for _, request in ipairs(granted) do
  append(outbox_key, tenant, request.id, request.record)
end
delete_swept(sweep, tenant_key, expiries_key)
local changes = {}
local function change(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end
for name, pool in pairs(pools) do
  if pool and pool.dirty then
    change(name, pool_text(pool))
  end
end
for name, bucket in pairs(buckets) do
  change(name, string.format('%.0f', bucket.units))
  if bucket.is_new then
    redis.call('ZADD', expiries_key, 0, name)
  end
end
for field, holdings in pairs(counters) do
  if holdings.dirty then
    change(field, holdings_text(holdings))
  end
end
if #changes > 0 then
  redis.call('HSET', tenant_key, unpack(changes))
end
for _, request in ipairs(granted) do
  redis.call('HSET', request.records_key, request.id, request.record)
end
return replies
