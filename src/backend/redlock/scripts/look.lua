-- Who holds, and how many wait; with a gate, which is told when nobody does any more.
-- KEYS: lock, waiters, node. ARGV: gate or ''.
-- Answers {what stands in the lock, ms until its end, waiters, token}, or {-2} if it may have
-- forgotten what it granted.
--- wake
--- member
if not is_member(KEYS[3]) then return {-2} end
local waiters = call('ZCOUNT', KEYS[2], '-inf', '(' .. string.format('%.0f', GATE))
local owner, _, _, token = holder(KEYS[1])
if not owner then return {'', 0, waiters, '0'} end
if ARGV[1] ~= '' then
  call('ZADD', KEYS[2], string.format('%.0f', GATE), ARGV[1])
  call('PEXPIRE', KEYS[2], '15000')
end
if owner == '?' then
  local value = redis.pcall('GET', KEYS[1])
  owner = '?' .. (type(value) == 'string' and value or '')
end
return {owner, call('PTTL', KEYS[1]), waiters, token or '0'}
