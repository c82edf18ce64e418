--[[
begin_epoch: the fence between two epochs of one partition. Its entry makes the stream refuse every id of an older
epoch, and a transition's entry is its first write: whatever old script still runs somewhere changes nothing.
Run by admission as plain text, since it belongs to no epoch.
KEYS
  outbox     stream of the partition
  mark       string: the epoch that the partition was admitted under
ARGV
  expected   the last entry that admission has taken over, empty for none
  epoch      the epoch that begins
  build      the build that it begins with
REPLIES
  defined
  stale
]]
local outbox_key, mark_key = KEYS[1], KEYS[2]
local expected, epoch, build = ARGV[1], ARGV[2], ARGV[3]

local last = redis.call('XREVRANGE', outbox_key, '+', '-', 'COUNT', 1)
if (last[1] and last[1][1] or '') ~= expected then
  return 'stale'
end
redis.call('XADD', outbox_key, epoch .. '-0', 'k', 'e', 'b', build)
redis.call('SET', mark_key, epoch)
return 'defined'
