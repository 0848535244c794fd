-- Answers {kind, waiters, token, ms until the holder's end, or those of each reader}.
--- draw
--- lib
local kind, _, token = holder()
local waiters = call('ZCOUNT', Q, '-inf', '(' .. string.format('%.0f', GATE))
-- An offer is a holder, not a waiter any more.
for _, entry in ipairs(call('ZRANGE', Q, 0, 511)) do
  if string.sub(entry, 1, 1) == '!' then waiters = waiters - 1 end
end
local answer = {kind or '-', waiters, token or '0'}
if kind == 's' then
  local readers = call('ZRANGE', R, 0, -1, 'WITHSCORES')
  for i = 2, #readers, 2 do
    answer[#answer + 1] = readers[i] - math.floor(now() / 1000)
  end
elseif kind then
  answer[4] = call('PTTL', K)
end
return answer
