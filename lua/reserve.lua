--[[
reserve: grants one reservation, all claims or none.
KEYS
  tenant      hash: build mark, pools, buckets, customer counters
  expiries    sorted set: the tenant's buckets
  outbox      stream of the partition
  records     hash with the reservation's record
ARGV
  tenant      the tenant's id, for the outbox entry
  id          the reservation
  ttl_ms      how long it holds its units
  fingerprint what the same id must bring again
  tail        the frozen end of the record
  customer    escaped; empty when none is named
  claims…     pool, quantity and revision of each
REPLIES
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

local tenant_key, expiries_key, outbox_key, records_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local tenant, id, ttl_ms, fingerprint, tail, customer = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local FIRST_CLAIM, CLAIM_LENGTH = 7, 3

local now_ms = read_clock(tenant_key)
local expires = math.ceil((now_ms + ttl_ms) / 1000)

-- One HMGET for all: the build mark, then pool, bucket and, where a customer is named, counter of each claim.
-- The nils give a table the room that three claims need: growing it step by step costs more than what it holds.
local fields, wanted, bucket_suffix = { '!build', nil, nil, nil, nil, nil, nil, nil, nil, nil }, 1, '|' .. expires
local fields_of_claim = customer == '' and 2 or 3
for at = FIRST_CLAIM, #ARGV, CLAIM_LENGTH do
  local name = ARGV[at]
  fields[wanted + 1], fields[wanted + 2] = name, name .. bucket_suffix
  if customer ~= '' then
    fields[wanted + 3] = name .. '||' .. customer
  end
  wanted = wanted + fields_of_claim
end
local values = redis.call('HMGET', tenant_key, unpack(fields, 1, wanted))
if values[1] ~= BUILD then
  return 'not_ready'
end

local pools, count, sweep = { nil, nil, nil }, 0, nil
for field = 2, wanted, fields_of_claim do
  local pool = values[field] and parse_pool(fields[field], values[field])
  if pool and pool.first ~= 0 and pool.first * 1000 <= now_ms then
    sweep = sweep or new_sweep()
    sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
  end
  count = count + 1
  pools[count] = pool
end

local function write_sweep()
  if not sweep then
    return
  end
  delete_swept(sweep, tenant_key, expiries_key)
  for position = 1, count do
    if pools[position] and pools[position].dirty then
      redis.call('HSET', tenant_key, pools[position].name, pool_text(pools[position]))
    end
  end
end

local text = redis.call('HGET', records_key, id)
if text then
  write_sweep()
  return answer_existing(text, fingerprint, pools, now_ms)
end

local holdings, counted = nil, ''
local at = FIRST_CLAIM
for position = 1, count do
  local pool, held = pools[position], nil
  if pool and pool.per_customer and customer ~= '' then
    held = parse_holdings(values[position * 3 + 1], pool)
    holdings = holdings or {}
    holdings[position] = held
  end
  local reply = refused(pool, position, ARGV[at + 1] + 0, ARGV[at + 2], held, now_ms)
  if reply then
    write_sweep()
    return reply
  end
  -- After a clock that stepped back, an end in seconds already swept would never be counted: the reservation
  -- then ends one second after what was swept.
  if expires <= pool.swept_to then
    expires = pool.swept_to + 1
    bucket_suffix = '|' .. expires
  end
  counted = counted .. (pool.per_customer and '1' or '0')
  at = at + CLAIM_LENGTH
end

counted = holdings and counted or ''
local times = now_ms .. bucket_suffix
local record = first_record(times, counted, ttl_ms, tail)
append(outbox_key, tenant, id, record)
if sweep then
  delete_swept(sweep, tenant_key, expiries_key)
end
local changes, place, field = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }, 0, 2
for position = 1, count do
  local pool, quantity = pools[position], ARGV[FIRST_CLAIM + position * CLAIM_LENGTH - 2] + 0
  pool.reserved = pool.reserved + quantity
  if pool.first == 0 or expires < pool.first then
    pool.first = expires
  end
  local bucket, units = pool.name .. bucket_suffix, values[field + 1]
  -- The end was moved behind a sweep, so the bucket that was read is another one.
  if bucket ~= fields[field + 1] then
    units = redis.call('HGET', tenant_key, bucket)
  end
  if not units then
    redis.call('ZADD', expiries_key, 0, bucket)
  end
  changes[place + 1], changes[place + 2] = pool.name, pool_text(pool)
  changes[place + 3], changes[place + 4] = bucket, (units or 0) + quantity
  place = place + 4
  local held = holdings and holdings[position]
  if held then
    hold(held, id, quantity, expires)
    changes[place + 1], changes[place + 2] = fields[field + 2], holdings_text(held)
    place = place + 2
  end
  field = field + fields_of_claim
end
redis.call('HSET', tenant_key, unpack(changes, 1, place))
redis.call('HSET', records_key, id, record)
return 'granted|' .. times .. '|' .. counted
