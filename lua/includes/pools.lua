-- A pool as the scripts hold it in memory, and the sweeping of its due buckets.
-- Field: reserved|first_s|completed|swept_to_s|cap|status|opens|closes|per_customer|late|rev
-- Numbers are concatenated as they are: Lua writes integers below 10^14 exactly, and caps end at 10^12. Writing one
-- costs six times what joining text does, so what a reserve leaves alone is kept as the text it came as.

local SWEEP_BUDGET = 1000

-- What most definitions are after their cap: active, no window, no customer limit. Then the rest stays text.
local PLAIN = 'a||||'

local function parse_pool(name, text)
  local reserved, first, kept, completed, swept_to, definition, cap, rest =
    string.match(text, '^([^|]+)|([^|]+)|(([^|]+)|([^|]+)|(([^|]*)|(.+)))')
  local pool = {
    name = name,
    completed = completed + 0,
    reserved = reserved + 0,
    first = first + 0,
    swept_to = swept_to + 0,
    cap = tonumber(cap),
    kept = kept,
    definition = definition,
  }
  if string.sub(rest, 1, 5) ~= PLAIN then
    local status, opens, closes, per_customer = string.match(rest, '^(%a)|(%d*)|(%d*)|(%d*)')
    pool.status = status
    pool.opens = tonumber(opens)
    pool.closes = tonumber(closes)
    pool.per_customer = tonumber(per_customer)
  end
  return pool
end

-- The end of the definition, which few calls ask for: what becomes of a late payment, and the revision.
local function late_and_rev(pool)
  return string.match(pool.definition, '(%a)|(%d+)$')
end

-- Whoever changes `completed`, `swept_to` or the definition sets `kept` to nil.
local function pool_text(pool)
  return pool.reserved .. '|' .. pool.first .. '|'
    .. (pool.kept or pool.completed .. '|' .. pool.swept_to .. '|' .. pool.definition)
end

-- Seconds have ten digits until the year 2286, so the lexical order of bucket names is the order of time.
local function bucket_name(pool_name, second)
  return pool_name .. '|' .. second
end

-- The pool's earliest live second after `second`, or 0. The upper bound works because '}' follows '|'.
local function first_after(expiries_key, pool_name, second)
  local found = redis.call('ZRANGEBYLEX', expiries_key, '(' .. bucket_name(pool_name, second),
    '(' .. pool_name .. '}', 'LIMIT', 0, 1)
  return found[1] and tonumber(string.sub(found[1], -10)) or 0
end

-- What one run of a script sweeps: how many buckets it may still drop, and which it dropped.
local function new_sweep()
  return { left = SWEEP_BUDGET, buckets = {} }
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
  pool.swept_to, pool.kept = tonumber(string.sub(due[#due], -10)), nil
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
