-- Tries what the other scripts need on keys of its own. Answers the first refusal, or ''.
-- ARGV: inbox.
local K, Q = KEYS[1], KEYS[2]
local function refusal()
  for _, command in ipairs({
    {'TIME'}, {'SET', K, '1', 'PX', '100', 'GET'}, {'GET', K}, {'MGET', K}, {'EXISTS', K},
    {'PTTL', K}, {'PEXPIRE', K, '100'}, {'DEL', K},
    {'ZADD', Q, '1', 'a'}, {'ZRANGE', Q, '0', '0'}, {'ZSCORE', Q, 'a'}, {'ZCOUNT', Q, '0', '1'},
    {'ZREMRANGEBYSCORE', Q, '1', '1'}, {'ZREM', Q, 'a'}, {'DEL', Q},
    {string.sub(ARGV[1], -1) == '}' and 'SPUBLISH' or 'PUBLISH', ARGV[1], 'p'},
  }) do
    local answer = redis.pcall(unpack(command))
    if type(answer) == 'table' and answer.err then return command[1] .. ': ' .. answer.err end
  end
  return ''
end
return refusal()
