-- What one customer holds of one pool. Field: completed;id:quantity:second;id:quantity:second …
-- A holding counts while its second lies ahead and its pool has not been swept past it.

local function customer_field(pool_name, customer)
  return pool_name .. '||' .. customer
end

local function parse_holdings(text)
  local holdings = { completed = tonumber(string.match(text or '0', '^(%d+)')) }
  for id, quantity, second in string.gmatch(text or '', ';([^:]+):(%d+):(%d+)') do
    holdings[#holdings + 1] = { id = id, quantity = tonumber(quantity), second = tonumber(second) }
  end
  return holdings
end

local function drop_holding(holdings, id)
  for index = #holdings, 1, -1 do
    if holdings[index].id == id then
      table.remove(holdings, index)
    end
  end
end

local function drop_expired(holdings, pool, now_ms)
  for index = #holdings, 1, -1 do
    local second = holdings[index].second
    if second * 1000 <= now_ms or second <= pool.swept_to then
      table.remove(holdings, index)
    end
  end
end

local function holdings_text(holdings)
  local parts = { string.format('%.0f', holdings.completed) }
  for index = 1, #holdings do
    local holding = holdings[index]
    parts[index + 1] = string.format('%s:%.0f:%.0f', holding.id, holding.quantity, holding.second)
  end
  return table.concat(parts, ';')
end

-- Writes a counter, or deletes one that says nothing any more, so that customers who walked away leave no trace.
local function write_holdings(tenant_key, field, holdings)
  if holdings.completed == 0 and #holdings == 0 then
    redis.call('HDEL', tenant_key, field)
  else
    redis.call('HSET', tenant_key, field, holdings_text(holdings))
  end
end
