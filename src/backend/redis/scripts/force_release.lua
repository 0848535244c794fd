-- Takes the key from whoever holds it, tells them, and serves the queue. Answers whether it was
-- held, and what nobody here has heard: an inbox and a message, in turns.
--- draw
--- lib
local kind, who, token = holder()
if not kind then return {0} end
local holders, unheard = {}, {1}
if kind == 'x' then
  holders = {who}
elseif kind == 's' then
  holders = call('ZRANGE', R, 0, -1)
  call('DEL', R)
end
for _, each in ipairs(holders) do
  local owner, inbox = string.match(each, '^(%S+) (%S+)$')
  local message = 'r ' .. owner .. ' ' .. K .. ' ' .. token
  if not tell(inbox, message) then
    unheard[#unheard + 1] = inbox
    unheard[#unheard + 1] = message
  end
  -- One that had not confirmed yet asks again, at its place.
  for _, entry in ipairs(call('ZRANGE', Q, 0, 511)) do
    if string.find(entry, '!' .. each .. ' ', 1, true) == 1 then call('ZREM', Q, entry) end
  end
end
call('DEL', K)
serve(nil)
return unheard
