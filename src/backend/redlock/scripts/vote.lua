-- Gives the key to an owner, if it is free here and this server knows what it granted.
-- KEYS: lock, waiters, counter, member, then a tombstone where attempts must look for one.
-- ARGV: who, ttl in ms, proposed token, how many tokens, run_id, ms since it waits or ''.
-- Answers {1, took the token?, counter}, {0, ms until the holder's end, counter, foreign?}, {-1}
-- to an owner that was undone, or {-2}.
--- wake
if KEYS[5] and call('EXISTS', KEYS[5]) == 1 then return {-1} end
local known = call('MGET', KEYS[3], KEYS[4])
local run, longest = string.match(known[2] or '', '^(%S+) (%d+)$')
if run ~= ARGV[5] then return {-2} end
local who, waited = ARGV[1], ARGV[6]
local counter = tonumber(known[1] or 0)
local owner = holder(KEYS[1])
if owner and owner ~= string.match(who, '^%S+') then
  if waited ~= '' then queue(KEYS[2], who, waited) end
  return {0, call('PTTL', KEYS[1]), counter, owner == '?' and 1 or 0}
end
-- Before anything is granted for so long: another server, once it lost its memory, is told.
if tonumber(ARGV[2]) > tonumber(longest) then
  call('SET', KEYS[4], run .. ' ' .. ARGV[2])
end
local took = tonumber(ARGV[3]) > counter
if took then
  counter = ARGV[3] + ARGV[4] - 1
  call('SET', KEYS[3], string.format('%.0f', counter))
end
call('SET', KEYS[1], 'r1 ' .. who .. ' ' .. ARGV[3], 'PX', ARGV[2])
if waited ~= '' then call('ZREM', KEYS[2], who) end
return {1, took and 1 or 0, counter}
