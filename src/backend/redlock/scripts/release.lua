-- Leaves nothing of an owner, and wakes who is next.
-- KEYS: lock, waiters, then a tombstone if there has to be one.
-- ARGV: owner, inbox, ms of the tombstone.
--- wake
-- Deletes before it writes: a server that is out of memory lets a script go on that has begun so.
local held = holder(KEYS[1]) == ARGV[1]
if held then call('DEL', KEYS[1]) end
call('ZREM', KEYS[2], ARGV[1] .. ' ' .. ARGV[2], 'told ' .. ARGV[2])
if KEYS[3] then call('SET', KEYS[3], '1', 'PX', ARGV[3]) end
if held or call('EXISTS', KEYS[1]) == 0 then wake(KEYS[1], KEYS[2]) end
return held and 1 or 0
