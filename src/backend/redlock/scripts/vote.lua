-- Gives the key to an owner, if it is free here and this server knows what it granted.
-- KEYS: lock, waiters, node, then a tombstone where attempts must look for one.
-- ARGV: owner, inbox, ballot, ttl in ms, counter, proposed token, how many tokens, ms since it
-- waits or ''.
-- Answers {1, took the token?, counter}, {0, ms until the holder's end, counter, foreign?}, {-1}
-- to an owner that was undone, or {-2} if it may have forgotten what it granted.
--- wake
--- member
if KEYS[4] and call('EXISTS', KEYS[4]) == 1 then return {-1} end
local N = KEYS[3]
if not is_member(N) then return {-2} end
local who, waited = ARGV[1] .. ' ' .. ARGV[2], ARGV[8]
local known = call('HMGET', N, ARGV[5], 'longest')
local counter = tonumber(known[1] or 0)
local owner, ballot = holder(KEYS[1])
-- An earlier ballot of this owner is over; a later one is not undone by what comes late.
if owner and (owner ~= ARGV[1] or ballot > tonumber(ARGV[3])) then
  if waited ~= '' then
    queue(KEYS[2], who, waited)
    heard(KEYS[2], ARGV[2])
  end
  return {0, call('PTTL', KEYS[1]), counter, owner == '?' and 1 or 0}
end
-- Before anything is granted for so long: another server, once it lost its memory, is told.
if tonumber(ARGV[4]) > tonumber(known[2] or 0) then call('HSET', N, 'longest', ARGV[4]) end
call('SET', KEYS[1], 'r1 ' .. ARGV[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[2] .. ' ' .. ARGV[6],
  'PX', ARGV[4])
local took = tonumber(ARGV[6]) > counter
if took then
  counter = ARGV[6] + ARGV[7] - 1
  call('HSET', N, ARGV[5], string.format('%.0f', counter))
end
if waited ~= '' then call('ZREM', KEYS[2], who, 'told ' .. ARGV[2]) end
return {1, took and 1 or 0, counter}
