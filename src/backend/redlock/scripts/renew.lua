-- Extends a lease, or gives a key that nobody has here to its owner anew.
-- KEYS: lock, waiters, node, then a tombstone where attempts must look for one.
-- ARGV: owner, inbox, ballot, ttl in ms, token. Answers 1 (extended), 2 (anew), 0 (not the
-- owner's) or -2 (it may have forgotten what it granted).
--- wake
--- member
local N = KEYS[3]
if not is_member(N) then return -2 end
local owner, ballot = holder(KEYS[1])
if owner == ARGV[1] and ballot == tonumber(ARGV[3]) then
  return call('PEXPIRE', KEYS[1], ARGV[4])
end
-- What an older ballot of it left here is as good as nothing.
if owner and (owner ~= ARGV[1] or ballot > tonumber(ARGV[3])) then return 0 end
if KEYS[4] and call('EXISTS', KEYS[4]) == 1 then return 0 end
if tonumber(ARGV[4]) > tonumber(call('HGET', N, 'longest') or 0) then
  call('HSET', N, 'longest', ARGV[4])
end
call('SET', KEYS[1], 'r1 ' .. ARGV[1] .. ' ' .. ARGV[3] .. ' ' .. ARGV[2] .. ' ' .. ARGV[5],
  'PX', ARGV[4])
call('ZREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], 'told ' .. ARGV[2])
return 2
