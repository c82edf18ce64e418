-- A reservation's record in memory. The mutable head and the frozen tail are kept apart, since no transition
-- touches the tail: fingerprint|claims|customer|metadata|order|code|period

local function parse_record(text)
  local state, version, created, expires, completed, ended, late, over, restocked, counted, payment, refused, ttl,
    tail, fingerprint, claims, customer = string.match(text,
    '^(%a)|(%d+)|(%d+)|(%d+)|(%d*)|(%d*)|(%d?)|(%d*)|(%d?)|(%d*)|([^|]*)|([^|]*)|(%d+)|'
      .. '((%x*)|([^|]*)|([^|]*)|.*)$')
  return {
    state = state,
    version = tonumber(version),
    created = created,
    expires = tonumber(expires),
    completed = completed,
    ended = ended,
    late = late,
    over = tonumber(over) or 0,
    restocked = restocked,
    counted = counted,
    payment = payment,
    refused = refused,
    ttl = ttl,
    tail = tail,
    fingerprint = fingerprint,
    claims = claims,
    customer = customer,
  }
end

local function record_text(record)
  return table.concat({
    record.state,
    record.version,
    record.created,
    record.expires,
    record.completed,
    record.ended,
    record.late,
    record.over > 0 and record.over or '',
    record.restocked,
    string.find(record.counted, '1', 1, true) and record.counted or '',
    record.payment,
    record.refused,
    record.ttl,
    record.tail,
  }, '|')
end

local function is_refused_payment(record, payment)
  return payment ~= '' and string.find(',' .. record.refused .. ',', ',' .. payment .. ',', 1, true) ~= nil
end

local function refuse_payment(record, payment)
  if payment ~= '' then
    record.refused = record.refused == '' and payment or record.refused .. ',' .. payment
  end
end

-- The record's claims with the state of their pools: one HMGET for the build mark, pools, buckets and counters.
-- `pool` is nil where the pool was removed; `in_bucket` is nil where the claim's bucket is gone.
local function load_claims(tenant_key, record)
  local claims, fields = {}, { '!build' }
  for name, quantity in string.gmatch(record.claims, '([^:,]+):(%d+)') do
    local position = #claims + 1
    claims[position] = {
      name = name,
      quantity = tonumber(quantity),
      bucket = bucket_name(name, record.expires),
      counter = name .. '||' .. record.customer,
      is_limited = string.sub(record.counted, position, position) == '1',
    }
    fields[#fields + 1] = name
    fields[#fields + 1] = claims[position].bucket
    fields[#fields + 1] = claims[position].counter
  end
  local values = redis.call('HMGET', tenant_key, unpack(fields))
  for position = 1, #claims do
    local claim = claims[position]
    local text = values[position * 3 - 1]
    if text then
      claim.pool = parse_pool(claim.name, text)
      claim.late = late_and_rev(claim.pool)
    end
    claim.in_bucket = tonumber(values[position * 3])
    claim.holdings = parse_all_holdings(values[position * 3 + 1])
  end
  return claims, values[1]
end

-- Whether a claim's units are still in its pool's reserved count. Only a reserved record's can be.
local function is_counted(record, claim)
  return record.state == 'R' and claim.pool and record.expires > claim.pool.swept_to
    and claim.in_bucket ~= nil and claim.in_bucket >= claim.quantity
end

-- Takes a claim's units out of the reserved count, if they are in it, and out of the bucket that would have
-- dropped them; an empty bucket goes, and the pool's first live second moves on with it.
local function uncount(tenant_key, expiries_key, record, claim)
  if not is_counted(record, claim) then
    return
  end
  local pool = claim.pool
  pool.reserved = pool.reserved - claim.quantity
  if claim.in_bucket > claim.quantity then
    redis.call('HSET', tenant_key, claim.bucket, (claim.in_bucket - claim.quantity))
    return
  end
  redis.call('HDEL', tenant_key, claim.bucket)
  redis.call('ZREM', expiries_key, claim.bucket)
  if pool.first == record.expires then
    pool.first = first_after(expiries_key, pool.name, record.expires)
  end
end
