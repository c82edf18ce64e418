-- Filled in by admission when the script is composed: a text that carries another epoch has another name
-- in the server's script cache, so it can't run until admission has loaded it.
local EPOCH = '@EPOCH@'
local BUILD = '@BUILD@'
