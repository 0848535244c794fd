-- Turns an offer to an exclusive owner into a lease. ARGV: value, ttl in ms, marked queue member.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[3])
return 1
