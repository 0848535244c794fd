-- Takes the key from whoever has it here, tells them, and wakes who is next.
-- KEYS: lock, waiters. Answers what stood in the lock, or ''.
--- wake
local owner, _, inbox, token = holder(KEYS[1])
if not owner then return '' end
if owner == '?' then
  local value = redis.pcall('GET', KEYS[1])
  owner = '?' .. (type(value) == 'string' and value or '')
end
call('DEL', KEYS[1])
if inbox then tell(inbox, 'r ' .. owner .. ' ' .. KEYS[1] .. ' ' .. token) end
wake(KEYS[1], KEYS[2])
return owner
