-- Takes the key from whoever holds it, tells them, and serves the queue. Answers whether it was held.
--- lib
local kind, owner, token = holder()
if not kind then return 0 end
local function revoke(who, token, inbox)
  tell(inbox, 'r ' .. who .. ' ' .. K .. ' ' .. token)
  -- One that had not confirmed yet asks again, at its place.
  for _, entry in ipairs(call('ZRANGE', Q, 0, 511)) do
    if string.find(entry, '!' .. who .. ' ', 1, true) == 1 then call('ZREM', Q, entry) end
  end
end
if kind == 'x' then
  revoke(owner, token, string.match(call('GET', K), '(%S+)$'))
elseif kind == 's' then
  local held = call('HGETALL', H)
  for i = 1, #held, 2 do
    revoke(held[i], string.match(held[i + 1], '^(%d+) (%S+)$'))
  end
  call('DEL', R, H)
end
call('DEL', K)
serve(nil)
return 1
