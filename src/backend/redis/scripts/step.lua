-- Acquires, asks again, or confirms; the same answer however often an owner asks.
-- ARGV: who, mode, ttl in ms, order and whether to queue, then, if not 1, the tokens, and a ticket.
-- Answers the token, {0, ms until the holder's end, ticket, foreign?, head of this inbox?}, or
-- {-1} to an owner that was undone.
local K, Q, F = KEYS[1], KEYS[2], KEYS[3]
local call = redis.call
if KEYS[5] and call('EXISTS', KEYS[5]) == 1 then return {-1} end
-- The common case, before anything else is defined: nobody holds, nobody waits.
if ARGV[2] == 'x' and call('EXISTS', K, Q) == 0 then
  local time = call('TIME')
  -- Sixteen digits until the year 2286, so texts compare as numbers do, at half the price.
  local token = time[1] .. string.format('%06d', time[2])
  local n, most = tonumber(ARGV[5] or 1), token
  if n > 1 then most = string.format('%.0f', token + n - 1) end
  -- The counter first: an error later costs a token, never repeats one.
  local last = call('SET', F, most, 'EX', '86400', 'GET')
  if last and last >= token then
    -- The clock was set back, or more was reserved than time has passed.
    token = string.format('%.0f', last + 1)
    call('SET', F, string.format('%.0f', last + n), 'EX', '86400')
  end
  call('SET', K, '1 ' .. ARGV[1] .. ' ' .. token, 'PX', ARGV[3])
  return token
end
--- lib
local me = {
  who = ARGV[1], inbox = string.match(ARGV[1], '^%S+ (%S+)$'), mode = ARGV[2], ttl = ARGV[3],
  tokens = ARGV[5] or 1,
}
me.entry = me.who .. ' ' .. me.mode .. ' ' .. me.ttl .. ' ' .. me.tokens
local unfair, queues = string.sub(ARGV[4], 1, 1) == 'u', string.sub(ARGV[4], 2, 2) == 'q'

local kind, who, token = holder()
-- By the owner alone: it may ask from another process now.
local same = kind == 'x' and string.match(who, '^%S+') == string.match(me.who, '^%S+')
if same or (kind == 's' and call('ZSCORE', R, me.who)) then
  hold(me, token)
  call('ZREM', Q, me.entry, '!' .. me.entry)
  return token
end

local ticket = ARGV[6]
if queues then
  -- An offer to it that lapsed is over.
  call('ZREM', Q, '!' .. me.entry)
  if not ticket then
    -- A place that it has already is the one to come back to.
    local place = tonumber(call('ZSCORE', Q, me.entry) or '')
    if place and place >= UNFAIR then place = place - UNFAIR end
    ticket = place and string.format('%.0f', place) or draw(1)
  end
  enqueue(me.entry, unfair, ticket)
end
local got
if not kind and unfair and not fifo_waits() then
  call('ZREM', Q, me.entry)
  return take(me)
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
if got then return got end
return {0, call('PTTL', K), ticket or '', kind == 'f' and 1 or 0, heads(me.inbox)}
