--[[
read: a reservation as it stands, with the script's clock and whether its units still count.
KEYS
  tenant     hash: build mark, pools, buckets, customer counters
  records    hash with the reservation's record
ARGV
  id         the reservation
REPLIES
  found|now_ms|counts|record
  unknown_reservation
  not_ready
]]
--@include epoch
--@include clock
--@include pools
--@include customers
--@include settled_customers
--@include records
--@include transition

local tenant_key, records_key = KEYS[1], KEYS[2]
local id = ARGV[1]

local record, claims = open_record(tenant_key, records_key, id)
if not claims then
  return record
end
local now_ms = read_clock(tenant_key)
return reply_with('found', now_ms, record, is_alive(record, claims, now_ms))
