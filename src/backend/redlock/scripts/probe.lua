-- Tries what the other scripts need on keys of its own. Answers the first refusal, or ''.
-- KEYS: three of ours. ARGV: inbox.
local K, W, N = KEYS[1], KEYS[2], KEYS[3]
local function refusal()
  for _, command in ipairs({
    {'INFO', 'server'}, {'TIME'}, {'SET', K, '1', 'PX', '100'}, {'SET', K, '1', 'KEEPTTL'},
    {'GET', K}, {'EXISTS', K}, {'PTTL', K}, {'PEXPIRE', K, '100'}, {'DEL', K},
    {'ZADD', W, 'NX', '1', 'a'}, {'PEXPIRE', W, '100'}, {'ZRANGE', W, '0', '0', 'WITHSCORES'},
    {'ZCOUNT', W, '0', '1'}, {'ZREM', W, 'a'},
    {'HSET', N, 'a', '1'}, {'PEXPIRE', N, '100'}, {'HGET', N, 'a'}, {'HMGET', N, 'a'},
    {'HGETALL', N}, {'HKEYS', N}, {'HDEL', N, 'a'},
    {'PUBLISH', ARGV[1], 'p'},
  }) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err then return command[1] .. ': ' .. answer.err end
  end
  return ''
end
return refusal()
