-- What one customer holds of one pool. Field: completed;id:quantity:second;id:quantity:second …
-- A holding counts until its pool is swept past its second, as its units do: dropped sooner, it would be missing when
-- the clock steps back. With nothing due left over that is the same as until its second comes.

-- In memory: the list of holdings that still count, with `completed` units, and `held`, both together.
local function parse_holdings(text, pool)
  if not text then
    return { completed = 0, held = 0 }
  end
  local completed = string.match(text, '^%d+') + 0
  local holdings = { completed = completed, held = completed }
  for id, quantity, second in string.gmatch(text, ';([^:]+):(%d+):(%d+)') do
    if second + 0 > pool.swept_to then
      holdings[#holdings + 1] = { id = id, quantity = quantity + 0, second = second }
      holdings.held = holdings.held + quantity
    end
  end
  return holdings
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
