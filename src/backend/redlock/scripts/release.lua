-- Leaves nothing of an owner, and wakes who is next.
-- KEYS: lock, waiters, then a tombstone if there has to be one.
-- ARGV: owner, inbox, ms of the tombstone.
--- wake
-- Before anything is written: a server that is out of memory lets a script write once it deleted.
local held = holder(KEYS[1]) == ARGV[1]
if held then call('DEL', KEYS[1]) end
if KEYS[3] then call('SET', KEYS[3], '1', 'PX', ARGV[3]) end
call('ZREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], 'told ' .. ARGV[2])
if held or call('EXISTS', KEYS[1]) == 0 then wake(KEYS[1], KEYS[2]) end
return held and 1 or 0
