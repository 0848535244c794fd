-- Raises the counter to a token of an owner that has the key here.
-- KEYS: lock, node. ARGV: owner, ballot, counter, token, how many tokens.
-- Answers {1}, {0, counter} where the token is too low, or {-1} where the key is not the owner's.
--- wake
--- member
local N = KEYS[2]
local owner, ballot, inbox = holder(KEYS[1])
if owner ~= ARGV[1] or ballot ~= tonumber(ARGV[2]) or not is_member(N) then return {-1} end
local counter = tonumber(call('HGET', N, ARGV[3]) or 0)
if tonumber(ARGV[4]) <= counter then return {0, counter} end
call('HSET', N, ARGV[3], string.format('%.0f', ARGV[4] + ARGV[5] - 1))
call('SET', KEYS[1], 'r1 ' .. owner .. ' ' .. ARGV[2] .. ' ' .. inbox .. ' ' .. ARGV[4], 'KEEPTTL')
return {1}
