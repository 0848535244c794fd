-- A server of a deployment that is new. KEYS: node. ARGV: whether to make it a member.
-- Answers 1 if nothing was ever granted here, 0 if something was.
local call, N = redis.call, KEYS[1]
for _, field in ipairs(call('HKEYS', N)) do
  if string.match(field, '^%d+$') then return 0 end
end
if ARGV[1] == '1' then
  call('HSET', N, 'member', string.match(call('INFO', 'server'), 'run_id:(%x+)'))
  call('HDEL', N, 'joining')
end
return 1
