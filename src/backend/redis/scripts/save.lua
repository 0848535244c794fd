-- Says how a holder ended, and gives its lock back if it is to.
-- KEYS: those of a lock, the record, then a tombstone to leave.
-- ARGV: owner, token, 'k' to keep a result or 'f' to forget, whether to release (0 or 1), ttl in ms
-- and bytes of the result, then the ms of a tombstone.
-- Answers 1, 0 if another has the key, or -1 if there is a newer record.
--- record
if ARGV[7] then redis.call('SET', KEYS[#KEYS], '1', 'PX', ARGV[7]) end
local held = redis.pcall('GET', KEYS[1])
if held and (type(held) ~= 'string' or string.match(held, '^1 (%S+) ') ~= ARGV[1]) then
  return 0
end
local value = redis.call('GET', KEYS[5])
local state, stood = string.match(value or '', '^(%a) (%d+) ')
local answer, closes = 1, false
if stood and later(stood, ARGV[2]) then
  answer = -1
elseif ARGV[3] == 'k' then
  closes = true
  -- The first result of a token stays.
  if state ~= 'c' or stood ~= ARGV[2] then
    redis.call('SET', KEYS[5], 'c ' .. ARGV[2] .. ' ' .. ARGV[6], 'PX', ARGV[5])
  end
else
  local token, owner, before = read_open(value)
  if owner == ARGV[1] and before == '' then
    redis.call('DEL', KEYS[5])
  elseif owner == ARGV[1] then
    -- The holder of the orphan may be there still, and is not to write after this one.
    redis.call('SET', KEYS[5], 'f ' .. token .. ' ', 'KEEPTTL')
  end
end
if held and ARGV[4] == '1' then
  redis.call('DEL', KEYS[1])
  held = nil
end
if (held and not closes) or redis.call('EXISTS', KEYS[2]) == 0 then return answer end
--- draw
--- lib
--- loaders
if closes then tell_loaders() end
if not held then serve(nil) end
return answer
