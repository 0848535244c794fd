-- Gives back what an owner got in a ballot that is over. It may ask again, and waits on if it waits.
-- KEYS: lock, waiters, then a tombstone where attempts must look for one.
-- ARGV: owner, inbox, ballot, ms since it waits or ''.
--- wake
if KEYS[3] and call('EXISTS', KEYS[3]) == 1 then return 0 end
local who = ARGV[1] .. ' ' .. ARGV[2]
local owner, ballot = holder(KEYS[1])
if owner == ARGV[1] and ballot == tonumber(ARGV[3]) then call('DEL', KEYS[1]) end
if ARGV[4] ~= '' then
  queue(KEYS[2], who, ARGV[4])
  heard(KEYS[2], ARGV[2])
end
if call('EXISTS', KEYS[1]) == 0 then wake(KEYS[1], KEYS[2], who) end
return 1
