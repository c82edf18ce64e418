-- Appends one entry: the reservation's whole state, and the settlement that caused it, if any. It is the first
-- write of a transition, so a transition that fails half-way leaves no effect that Postgres will not hear of.
-- The stream refuses ids of an epoch that has been followed by another, which fences scripts of an old epoch.
local function append(outbox_key, tenant, id, record, settlement, outcome, payment)
  if settlement and settlement ~= '' then
    redis.call('XADD', outbox_key, EPOCH .. '-*', 'k', 'r', 't', tenant, 'i', id, 'r', record,
      's', settlement, 'o', outcome, 'p', payment)
  else
    redis.call('XADD', outbox_key, EPOCH .. '-*', 'k', 'r', 't', tenant, 'i', id, 'r', record)
  end
end
