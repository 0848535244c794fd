-- Acquires, asks again, or confirms; the same answer however often an owner asks.
-- ARGV: owner, queue member, inbox, mode, order, ttl in ms, tokens, ticket or '', '1' to queue.
-- Answers {1, token}, {0, ms until the holder's end, ticket, foreign?, head of this inbox?}, or
-- {-1} to an owner that was undone.
local K, Q, F = KEYS[1], KEYS[2], KEYS[3]
local owner, inbox, ttl = ARGV[1], ARGV[3], ARGV[6]
if KEYS[6] and redis.call('EXISTS', KEYS[6]) == 1 then return {-1} end
-- The common case before anything else is defined: nobody holds, nobody waits.
if ARGV[4] == 'x' then
  local both = redis.call('MGET', K, F)
  if not both[1] and redis.call('EXISTS', Q) == 0 then
    local time, last = redis.call('TIME'), tonumber(both[2] or 0) or 0
    local token = time[1] * 1000000 + time[2]
    if token <= last then token = last + 1 end
    local text = string.format('%.0f', token)
    local most = text
    if ARGV[7] ~= '1' then most = string.format('%.0f', token + ARGV[7] - 1) end
    -- The counter first: an error later costs a token, never repeats one.
    redis.call('SET', F, most, 'EX', 86400)
    -- NX, because a value that is no string looks like none to MGET.
    if redis.call('SET', K, '1 ' .. owner .. ' ' .. text .. ' ' .. inbox, 'NX', 'PX', ttl) then
      return {1, text}
    end
  end
end
--- lib
local me, mode, order, queues = ARGV[2], ARGV[4], ARGV[5], ARGV[9] == '1'
local kind, holds, token = holder()
if kind == 'x' and holds == owner then
  local value = '1 ' .. owner .. ' ' .. token .. ' ' .. inbox
  if call('GET', K) == value then
    call('PEXPIRE', K, ttl)
  else
    -- It asks from another process now.
    call('SET', K, value, 'PX', ttl)
  end
  call('ZREM', Q, me, '!' .. me)
  return {1, token}
end
if kind == 's' then
  token = read_token(owner)
  if token then
    let_read(owner, inbox, token, ttl)
    call('ZREM', Q, me, '!' .. me)
    return {1, token}
  end
end

local ticket = ARGV[8]
if queues then
  -- An offer to it that lapsed is over.
  call('ZREM', Q, '!' .. me)
  if ticket == '' then
    -- A place that it has already is the one to come back to.
    local score = tonumber(call('ZADD', Q, 'XX', 'INCR', '0', me) or '')
    if not score then
      ticket = draw(1)
    else
      if score >= UNFAIR then score = score - UNFAIR end
      ticket = string.format('%.0f', score)
    end
  end
  enqueue(me, order, ticket)
end
local free = not kind
if free and order == 'u' and not fifo_waits() then
  call('ZREM', Q, me)
  return {1, take(owner, inbox, mode, ttl, ARGV[7])}
end
local got
if free then
  got = serve(me)
elseif kind == 's' and mode == 's' then
  got = admit(me, true)
end
if got then return {1, got} end
if not queues and not someone_unserved() then
  -- Nobody was there to be served, so a try may have it.
  kind = holder()
  if not kind or (kind == 's' and mode == 's') then
    return {1, take(owner, inbox, mode, ttl, ARGV[7])}
  end
end
return {0, call('PTTL', K), ticket, kind == 'f' and 1 or 0, heads(inbox)}
