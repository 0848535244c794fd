-- Answers {kind, waiters, ms until the holder's end, then a token, or token and ms of each reader}.
--- lib
local kind, _, token = holder()
local waiters = call('ZCOUNT', Q, '-inf', '(' .. string.format('%.0f', GATE))
-- An offer is a holder, not a waiter any more.
for _, entry in ipairs(call('ZRANGE', Q, 0, 511)) do
  if string.sub(entry, 1, 1) == '!' then waiters = waiters - 1 end
end
local answer = {kind or '-', waiters, call('PTTL', K)}
if kind == 'x' then
  answer[4] = token
elseif kind == 's' then
  local readers = call('ZRANGE', R, 0, -1, 'WITHSCORES')
  for i = 1, #readers, 2 do
    answer[#answer + 1] = read_token(readers[i]) or '0'
    answer[#answer + 1] = string.format('%.0f', readers[i + 1] - math.floor(now() / 1000))
  end
end
return answer
