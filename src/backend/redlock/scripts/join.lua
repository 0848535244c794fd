-- Makes a server a member that is still joining under this name, with what it has to know.
-- KEYS: node. ARGV: name, then fields and values, of which the higher counts.
-- Answers whether it was.
local call, N = redis.call, KEYS[1]
local run = string.match(call('INFO', 'server'), 'run_id:(%x+)')
if call('HGET', N, 'joining') ~= run .. ' ' .. ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  if tonumber(ARGV[i + 1]) > tonumber(call('HGET', N, ARGV[i]) or 0) then
    call('HSET', N, ARGV[i], ARGV[i + 1])
  end
end
call('HSET', N, 'member', run)
call('HDEL', N, 'joining')
return 1
