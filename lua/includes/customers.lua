-- What one customer holds of one pool. Field: completed;id:quantity:second;id:quantity:second …
-- A holding counts while its second lies ahead and its pool has not been swept past it.

local function customer_field(pool_name, customer)
  return pool_name .. '||' .. customer
end

-- In memory: a list of holdings, with `completed` units and `held`, which is completed and reserved together.
local function parse_holdings(text)
  if not text then
    return { completed = 0, held = 0 }
  end
  local completed = tonumber(string.match(text, '^%d+'))
  local holdings = { completed = completed, held = completed }
  for id, quantity, second in string.gmatch(text, ';([^:]+):(%d+):(%d+)') do
    holdings[#holdings + 1] = { id = id, quantity = tonumber(quantity), second = tonumber(second) }
    holdings.held = holdings.held + quantity
  end
  return holdings
end

local function drop_at(holdings, index)
  holdings.held = holdings.held - holdings[index].quantity
  table.remove(holdings, index)
end

local function drop_holding(holdings, id)
  holdings.dirty = true
  for index = #holdings, 1, -1 do
    if holdings[index].id == id then
      drop_at(holdings, index)
    end
  end
end

local function drop_expired(holdings, pool, now_ms)
  for index = #holdings, 1, -1 do
    local second = holdings[index].second
    if second * 1000 <= now_ms or second <= pool.swept_to then
      drop_at(holdings, index)
    end
  end
end

local function hold(holdings, id, quantity, second)
  holdings[#holdings + 1] = { id = id, quantity = quantity, second = second }
  holdings.held = holdings.held + quantity
  holdings.dirty = true
end

local function holdings_text(holdings)
  local text = holdings.completed .. ''
  for index = 1, #holdings do
    local holding = holdings[index]
    text = text .. ';' .. holding.id .. ':' .. holding.quantity .. ':' .. holding.second
  end
  return text
end

-- Writes a counter, or deletes one that says nothing any more, so that customers who walked away leave no trace.
local function write_holdings(tenant_key, field, holdings)
  if holdings.completed == 0 and #holdings == 0 then
    redis.call('HDEL', tenant_key, field)
  else
    redis.call('HSET', tenant_key, field, holdings_text(holdings))
  end
end
