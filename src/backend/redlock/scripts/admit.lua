-- Makes this process of the server a member, with what it has learned.
-- KEYS: member, joining, then the counters. ARGV: run_id, us to have passed since it was seen
-- first, the longest ttl in ms, then the counters' values. Answers whether it is one now.
local call = redis.call
local run, longest = string.match(call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
if run == ARGV[1] then return 1 end
local joining, since = string.match(call('GET', KEYS[2]) or '', '^(%S+) (%d+)$')
local time = call('TIME')
if joining ~= ARGV[1] or time[1] * 1000000 + time[2] - since < tonumber(ARGV[2]) then
  return 0
end
for i = 3, #KEYS do
  local value = tonumber(ARGV[i + 1])
  if value > tonumber(call('GET', KEYS[i]) or 0) then
    call('SET', KEYS[i], string.format('%.0f', value))
  end
end
-- What this server's own data says is not less true for being old.
longest = math.max(tonumber(longest or 0), tonumber(ARGV[3]))
call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%.0f', longest))
call('DEL', KEYS[2])
return 1
