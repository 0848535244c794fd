-- A ballot that got too few nodes gives this one back, and its owner waits on.
-- KEYS: lock, waiters. ARGV: owner, inbox, ballot, ms since it waits.
--- wake
local who = ARGV[1] .. ' ' .. ARGV[2]
local owner, ballot = holder(KEYS[1])
if owner == ARGV[1] and ballot == tonumber(ARGV[3]) then call('DEL', KEYS[1]) end
queue(KEYS[2], who, ARGV[4])
if call('EXISTS', KEYS[1]) == 0 then wake(KEYS[1], KEYS[2], who) end
return 1
