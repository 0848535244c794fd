-- What a server knows, for one that has to learn it.
-- KEYS: member, joining, then the counters. ARGV: run_id.
-- Answers {-1, the longest ttl in ms, counters..} of a member, {us since it was seen first, the
-- same..} of one that is joining, or {-2} of one that is neither.
local call = redis.call
local run, longest = string.match(call('GET', KEYS[1]) or '', '^(%S+) (%d+)$')
local answer = {}
if run == ARGV[1] then
  answer = {-1, tonumber(longest)}
else
  local joining, since = string.match(call('GET', KEYS[2]) or '', '^(%S+) (%d+)$')
  if joining ~= ARGV[1] then return {-2} end
  local time = call('TIME')
  answer = {math.max(0, time[1] * 1000000 + time[2] - since), tonumber(longest or 0)}
end
for i = 3, #KEYS do answer[i] = tonumber(call('GET', KEYS[i]) or 0) end
return answer
