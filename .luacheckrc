-- For the composed scripts, since luacheck does not follow includes: python -m engine.scripts --compose DIR
std = "lua51"
read_globals = { "redis", "KEYS", "ARGV", "cjson" }
max_line_length = 120
-- A script gets whole includes and uses a part of each, so what it leaves unused says nothing.
ignore = { "211" }
