-- A pool as the scripts hold it in memory, and the sweeping of its due buckets.
-- Field: completed|reserved|first_s|swept_to_s|cap|status|opens|closes|per_customer|late|rev

local SWEEP_BUDGET = 1000

local function parse_pool(name, text)
  local completed, reserved, first, swept_to, definition, cap, status, opens, closes, per_customer, late, rev =
    string.match(text, '^(%d+)|(%d+)|(%d+)|(%d+)|((%d*)|(%a)|(%d*)|(%d*)|(%d*)|(%a)|(%d+))$')
  return {
    name = name,
    completed = tonumber(completed),
    reserved = tonumber(reserved),
    first = tonumber(first),
    swept_to = tonumber(swept_to),
    definition = definition,
    cap = tonumber(cap),
    status = status,
    opens = tonumber(opens),
    closes = tonumber(closes),
    per_customer = tonumber(per_customer),
    late = late,
    rev = rev,
  }
end

local function pool_text(pool)
  return string.format('%.0f|%.0f|%.0f|%.0f|', pool.completed, pool.reserved, pool.first, pool.swept_to)
    .. pool.definition
end

local function bucket_name(pool_name, second)
  return string.format('%s|%010.0f', pool_name, second)
end

-- The pool's earliest live second after `second`, or 0. The upper bound works because '}' follows '|'.
local function first_after(expiries_key, pool_name, second)
  local found = redis.call('ZRANGEBYLEX', expiries_key, '(' .. bucket_name(pool_name, second),
    '(' .. pool_name .. '}', 'LIMIT', 0, 1)
  return found[1] and tonumber(string.sub(found[1], -10)) or 0
end

-- Units of available supply, or nil when the pool is unlimited. Never below 0: a late payment that was honoured
-- may have carried the pool over its cap.
local function available_units(pool)
  return pool.cap and math.max(0, pool.cap - pool.completed - pool.reserved)
end

-- Takes due buckets out of a pool's count, in memory; `sweep` collects what is to be deleted and shares one budget
-- over all pools of a run. Leaves pool.more set when due buckets are left over: then the count is too high, and
-- the caller may grant on it but must not refuse.
local function sweep_pool(sweep, tenant_key, expiries_key, pool, now_ms)
  if pool.first == 0 or pool.first * 1000 > now_ms then
    return
  end
  local now_s = math.floor(now_ms / 1000)
  if sweep.left == 0 then
    pool.more = true
    return
  end
  local due = redis.call('ZRANGEBYLEX', expiries_key, '[' .. pool.name .. '|',
    '[' .. bucket_name(pool.name, now_s), 'LIMIT', 0, sweep.left)
  if #due == 0 then
    pool.first = first_after(expiries_key, pool.name, now_s)
    return
  end
  local counts = redis.call('HMGET', tenant_key, unpack(due))
  for index = 1, #due do
    pool.reserved = pool.reserved - tonumber(counts[index] or 0)
    sweep.buckets[#sweep.buckets + 1] = due[index]
  end
  sweep.left = sweep.left - #due
  pool.swept_to = tonumber(string.sub(due[#due], -10))
  pool.first = first_after(expiries_key, pool.name, pool.swept_to)
  pool.more = pool.first ~= 0 and pool.first * 1000 <= now_ms
  pool.dirty = true
end

local function delete_swept(sweep, tenant_key, expiries_key)
  if #sweep.buckets > 0 then
    redis.call('HDEL', tenant_key, unpack(sweep.buckets))
    redis.call('ZREM', expiries_key, unpack(sweep.buckets))
  end
end
