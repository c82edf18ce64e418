-- Changing what a customer holds, for transitions of a stored reservation.

-- All holdings, also those that count no more: what a transition does not touch it leaves as it is.
local function parse_all_holdings(text)
  local holdings = { completed = tonumber(string.match(text or '0', '^%d+')), held = 0 }
  for id, quantity, second in string.gmatch(text or '', ';([^:]+):(%d+):(%d+)') do
    holdings[#holdings + 1] = { id = id, quantity = quantity, second = second }
  end
  return holdings
end

local function drop_holding(holdings, id)
  holdings.dirty = true
  for index = #holdings, 1, -1 do
    if holdings[index].id == id then
      table.remove(holdings, index)
    end
  end
end

-- Writes a counter, or deletes one that says nothing any more, so that customers who walked away leave no trace.
local function write_holdings(tenant_key, field, holdings)
  if holdings.completed == 0 and #holdings == 0 then
    redis.call('HDEL', tenant_key, field)
  else
    redis.call('HSET', tenant_key, field, holdings_text(holdings))
  end
end
