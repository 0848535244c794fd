-- Acquires, asks again, or confirms; the same answer however often an owner asks.
-- ARGV: who, mode, ttl in ms, order and whether to queue, then, if not 1, the tokens, and a ticket.
-- Answers the token, {0, ms until the holder's end, ticket, foreign?, head of this inbox?}, or
-- {-1} to an owner that was undone.
if KEYS[5] and redis.call('EXISTS', KEYS[5]) == 1 then return {-1} end
--- draw
-- The common case, before more is defined: nobody holds, nobody waits.
if ARGV[2] == 'x' and call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  -- The counter first: an error later costs a token, never repeats one.
  local token = draw(KEYS[3], tonumber(ARGV[5] or 1))
  call('SET', KEYS[1], '1 ' .. ARGV[1] .. ' ' .. token, 'PX', ARGV[3])
  return token
end
--- lib
--- ask
return ask(wish(''), ARGV[6])
