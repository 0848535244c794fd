-- Raises the counter to a token of an owner that has the key here.
-- KEYS: lock, counter, member. ARGV: who, token, how many tokens, run_id.
-- Answers {1}, {0, counter} where the token is too low, or {-1} where the key is not the owner's.
--- wake
local run = string.match(call('GET', KEYS[3]) or '', '^(%S+) ')
if run ~= ARGV[4] or holder(KEYS[1]) ~= string.match(ARGV[1], '^%S+') then return {-1} end
local counter = tonumber(call('GET', KEYS[2]) or 0)
if tonumber(ARGV[2]) <= counter then return {0, counter} end
call('SET', KEYS[2], string.format('%.0f', ARGV[2] + ARGV[3] - 1))
call('SET', KEYS[1], 'r1 ' .. ARGV[1] .. ' ' .. ARGV[2], 'KEEPTTL')
return {1}
