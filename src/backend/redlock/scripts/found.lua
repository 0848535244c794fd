-- A server of a deployment that is new. KEYS: member, joining, then the counters.
-- ARGV: run_id, the longest ttl in ms, whether to make it a member.
-- Answers 2 if it is a member, 1 if nothing was ever granted here, 0 if something was.
local call = redis.call
for i = 3, #KEYS do
  if call('EXISTS', KEYS[i]) == 1 then
    return string.match(call('GET', KEYS[1]) or '', '^(%S+) ') == ARGV[1] and 2 or 0
  end
end
if ARGV[3] == '1' then
  call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
  call('DEL', KEYS[2])
end
return 1
