-- As abandon, of an owner that was not told that it holds: its open record goes too, and what it
-- took the place of comes back. KEYS: those of a lock, the record, then a tombstone to leave.
--- record
local value, mine = redis.call('GET', KEYS[5]), string.match(ARGV[1], '^%S+')
local token, opener, before, at = read_open(value)
if opener == mine then
  if before == '' then
    redis.call('DEL', KEYS[5])
  else
    -- A result would last too long, and be new to those who came after it: its token stays.
    local result = string.match(before, '^c (%d+) ')
    redis.call('SET', KEYS[5], result and 'f ' .. result .. ' ' or before, 'KEEPTTL')
  end
elseif opener then
  -- Its lease had ended, and another took it for an orphan: to nobody else. Its token stays, for
  -- the sake of those whose place it took itself.
  local stood, owner = read_open(before)
  if owner == mine then
    local mark = 'f ' .. stood .. ' '
    local head = 'o ' .. token .. ' ' .. opener .. ' ' .. #mark .. ' '
    redis.call('SET', KEYS[5], head .. mark .. string.sub(value, at), 'KEEPTTL')
  end
end
--- abandon
