-- An owner that got too few nodes gives this one back, and waits on.
-- KEYS: lock, waiters. ARGV: who, ms since it waits.
--- wake
if holder(KEYS[1]) == string.match(ARGV[1], '^%S+') then call('DEL', KEYS[1]) end
queue(KEYS[2], ARGV[1], ARGV[2])
if call('EXISTS', KEYS[1]) == 0 then wake(KEYS[1], KEYS[2], ARGV[1]) end
return 1
