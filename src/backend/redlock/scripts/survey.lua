-- What this server knows, and whether it is a member; if it is none, it is joining from now on.
-- KEYS: node. ARGV: a name to join under.
-- Answers {'' or the name under which it is joining, all fields and values of the node}.
--- member
local N = KEYS[1]
if is_member(N) then return {'', redis.call('HGETALL', N)} end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local joining, name = string.match(redis.call('HGET', N, 'joining') or '', '^(%S+) (%S+)$')
if joining ~= run then
  name = ARGV[1]
  redis.call('HSET', N, 'joining', run .. ' ' .. name)
end
return {name, redis.call('HGETALL', N)}
