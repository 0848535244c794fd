-- Whether this process of the server is a member, or since when it has been known.
-- KEYS: member, joining. ARGV: run_id. Answers -1 (a member) or us since it was seen first.
local call = redis.call
local function run_of(key)
  return string.match(call('GET', key) or '', '^(%S+) (%d+)$')
end
if run_of(KEYS[1]) == ARGV[1] then return -1 end
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local run, since = run_of(KEYS[2])
-- A clock that went back says nothing of how long it was.
if run == ARGV[1] and tonumber(since) <= now then return now - since end
call('SET', KEYS[2], ARGV[1] .. ' ' .. string.format('%.0f', now))
return 0
