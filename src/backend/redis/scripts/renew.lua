-- Extends exclusive leases, any number in one call. ARGV: value and ttl in ms of each key.
local values, answer = redis.call('MGET', unpack(KEYS)), {}
for i, key in ipairs(KEYS) do
  if values[i] == ARGV[2 * i - 1] then
    answer[i] = redis.call('PEXPIRE', key, ARGV[2 * i])
  else
    answer[i] = 0
  end
end
return answer
