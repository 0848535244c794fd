-- Acquires, asks again, or confirms; the same answer however often an owner asks.
-- ARGV: who, mode, ttl in ms, order and whether to queue, then, if not 1, the tokens, and a ticket.
-- Answers {1, token}, {0, ms until the holder's end, ticket, foreign?, head of this inbox?}, or
-- {-1} to an owner that was undone.
local K, Q, F = KEYS[1], KEYS[2], KEYS[3]
local call = redis.call
if KEYS[5] and call('EXISTS', KEYS[5]) == 1 then return {-1} end
-- The common case, before anything else is defined: nobody holds, nobody waits.
if ARGV[2] == 'x' and call('EXISTS', K, Q) == 0 then
  local time = call('TIME')
  local token = time[1] * 1000000 + time[2]
  local text = string.format('%.0f', token)
  local n = tonumber(ARGV[5] or 1)
  local most = n > 1 and string.format('%.0f', token + n - 1) or text
  -- The counter first: an error later costs a token, never repeats one.
  local last = tonumber(call('SET', F, most, 'EX', 86400, 'GET') or 0) or 0
  if last >= token then
    -- The clock was set back, or more was reserved than time has passed.
    token = last + 1
    text = string.format('%.0f', token)
    call('SET', F, string.format('%.0f', token + n - 1), 'EX', 86400)
  end
  call('SET', K, '1 ' .. ARGV[1] .. ' ' .. text, 'PX', ARGV[3])
  return {1, text}
end
--- lib
local me = {
  who = ARGV[1], inbox = string.match(ARGV[1], '(%S+)$'), mode = ARGV[2], ttl = ARGV[3],
  tokens = ARGV[5] or 1,
}
me.entry = me.who .. ' ' .. me.mode .. ' ' .. me.ttl .. ' ' .. me.tokens
local unfair, queues = string.sub(ARGV[4], 1, 1) == 'u', string.sub(ARGV[4], 2, 2) == 'q'

local kind, who, token = holder()
if (kind == 'x' and who == me.who) or (kind == 's' and call('ZSCORE', R, me.who)) then
  hold(me, token)
  call('ZREM', Q, me.entry, '!' .. me.entry)
  return {1, token}
end

local ticket = ARGV[6]
if queues then
  -- An offer to it that lapsed is over.
  call('ZREM', Q, '!' .. me.entry)
  ticket = ticket or draw(1)
  enqueue(me.entry, unfair, ticket)
end
local got
if not kind and unfair and not fifo_waits() then
  call('ZREM', Q, me.entry)
  return {1, take(me)}
elseif not kind then
  got = serve(me)
elseif kind == 's' and me.mode == 's' then
  got = admit(me, true)
end
if not got and not queues and not someone_unserved() then
  -- Nobody was there to be served, so a try may have it.
  kind = holder()
  if not kind or (kind == 's' and me.mode == 's') then got = take(me) end
end
if got then return {1, got} end
return {0, call('PTTL', K), ticket or '', kind == 'f' and 1 or 0, heads(me.inbox)}
