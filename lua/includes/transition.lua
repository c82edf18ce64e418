-- What every transition of one stored reservation shares: the opening, the closing and the form of its reply.

-- Writes pools and counters that a transition changed, then the record.
local function write_claims(tenant_key, claims)
  for _, claim in ipairs(claims) do
    if claim.pool then
      redis.call('HSET', tenant_key, claim.name, pool_text(claim.pool))
    end
    if claim.holdings.dirty then
      write_holdings(tenant_key, claim.counter, claim.holdings)
    end
  end
end

-- Whether the reservation's units count everywhere and its end lies ahead.
local function is_alive(record, claims, now_ms)
  if record.state ~= 'R' or now_ms >= record.expires * 1000 then
    return false
  end
  for _, claim in ipairs(claims) do
    if not is_counted(record, claim) then
      return false
    end
  end
  return true
end

local function reply_with(outcome, now_ms, record, counts)
  return outcome .. '|' .. now_ms .. '|' .. (counts and '1' or '0') .. '|' .. record_text(record)
end

-- A missing record means two things: the tenant is not admitted, or there is no such reservation here.
local function reply_missing(tenant_key)
  return redis.call('HGET', tenant_key, '!build') == BUILD and 'unknown_reservation' or 'not_ready'
end

-- A stored record, its claims and the text that it came as; or, alone, what to reply where it can't be worked on.
local function open_record(tenant_key, records_key, id)
  local text = redis.call('HGET', records_key, id)
  if not text then
    return reply_missing(tenant_key)
  end
  local record = parse_record(text)
  local claims, build = load_claims(tenant_key, record)
  if build ~= BUILD then
    return 'not_ready'
  end
  return record, claims, text
end
