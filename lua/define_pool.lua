--[[
define_pool: pushes a definition that Postgres holds; counts stay. An older or equal revision changes nothing.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  mark       string: the epoch that the partition was admitted under
ARGV
  pool       the pool
  definition cap|status|opens|closes|per_customer|late|rev
  rev        the definition's revision
  first      1 when no pool of this tenant was ever pushed, else empty
  clock      the test clock's offset in ms, 0 outside the sandbox
REPLIES
  defined|pool
  not_ready
]]
--@include epoch
--@include pools

local tenant_key, mark_key = KEYS[1], KEYS[2]
local name, definition, rev, first, clock_offset = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

local values = redis.call('HMGET', tenant_key, '!build', name)
local build, text = values[1], values[2]
-- A tenant without its mark was lost, unless it is new; and it is new only in data that was not lost itself.
if build ~= BUILD and not (first == '1' and not build and redis.call('GET', mark_key) == EPOCH) then
  return 'not_ready'
end
local counts = { completed = 0, reserved = 0, first = 0, swept_to = 0 }
if text then
  counts = parse_pool(name, text)
  local stored_rev = select(2, late_and_rev(counts))
  if tonumber(stored_rev) >= rev then
    return 'defined|' .. text
  end
end
counts.definition, counts.kept = definition, nil
local defined = pool_text(counts)
if not build then
  redis.call('HSET', tenant_key, '!build', BUILD)
  if clock_offset > 0 then
    redis.call('HSET', tenant_key, '!clock', clock_offset)
  end
end
redis.call('HSET', tenant_key, name, defined)
return 'defined|' .. defined
