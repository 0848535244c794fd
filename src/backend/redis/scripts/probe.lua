-- Tries what the other scripts need on keys of its own. Answers the first refusal, or ''.
-- ARGV: inbox.
local K = KEYS[1]
local function refusal()
  for _, command in ipairs({
    {'TIME'}, {'SET', K, '1', 'NX', 'PX', '100'}, {'GET', K}, {'MGET', K}, {'EXISTS', K},
    {'PTTL', K}, {'PEXPIRE', K, '100'}, {'DEL', K},
    {'ZADD', K, '1', 'a'}, {'ZRANGE', K, '0', '0'}, {'ZSCORE', K, 'a'}, {'ZCOUNT', K, '0', '1'},
    {'ZREMRANGEBYSCORE', K, '1', '1'}, {'ZREM', K, 'a'}, {'DEL', K},
    {'PUBLISH', ARGV[1], 'p'},
  }) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err then return command[1] .. ': ' .. answer.err end
  end
  return ''
end
return refusal()
