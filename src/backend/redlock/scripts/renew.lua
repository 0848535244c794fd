-- Extends a lease, or gives a key that nobody has here to its owner anew.
-- KEYS: lock, waiters, member, then a tombstone where attempts must look for one.
-- ARGV: who, ttl in ms, token, run_id. Answers 1 (extended), 2 (anew), 0 (not the owner's) or -2.
--- wake
local run, longest = string.match(call('GET', KEYS[3]) or '', '^(%S+) (%d+)$')
if run ~= ARGV[4] then return -2 end
local owner = holder(KEYS[1])
if owner == string.match(ARGV[1], '^%S+') then
  return call('PEXPIRE', KEYS[1], ARGV[2])
end
if owner or (KEYS[4] and call('EXISTS', KEYS[4]) == 1) then return 0 end
if tonumber(ARGV[2]) > tonumber(longest) then
  call('SET', KEYS[3], run .. ' ' .. ARGV[2])
end
call('SET', KEYS[1], 'r1 ' .. ARGV[1] .. ' ' .. ARGV[3], 'PX', ARGV[2])
call('ZREM', KEYS[2], ARGV[1])
return 2
