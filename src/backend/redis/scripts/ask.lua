-- The wish of the one who asks, in the words of a step; `waits_for` ends its entry in the queue.
local function wish(waits_for)
  local me = {who = ARGV[1], mode = ARGV[2], ttl = ARGV[3], tokens = ARGV[5] or 1}
  me.owner, me.inbox = string.match(me.who, '^(%S+) (%S+)$')
  me.entry = me.who .. ' ' .. me.mode .. ' ' .. me.ttl .. ' ' .. me.tokens .. waits_for
  return me
end

-- The token if it holds now; else what there is to wait for.
local function ask(me, ticket)
  local unfair, queues = string.sub(ARGV[4], 1, 1) == 'u', string.sub(ARGV[4], 2, 2) == 'q'

  local kind, who, token = holder()
  -- By the owner alone: it may ask from another process now.
  local same = kind == 'x' and string.match(who, '^%S+') == me.owner
  -- As what it holds: a reader that wants the key alone has to wait for the others.
  if me.mode == kind and (same or (kind == 's' and call('ZSCORE', R, me.who))) then
    hold(me, token)
    call('ZREM', Q, me.entry, '!' .. me.entry)
    return token
  end

  if queues then
    if ticket then
      -- An offer to it that lapsed is over.
      call('ZREM', Q, '!' .. me.entry)
      enqueue(me.entry, unfair, ticket)
    else
      ticket = draw(F, 1)
      if enqueue(me.entry, unfair, ticket) == 0 then
        -- A place that it has already is the one to come back to.
        local place = tonumber(call('ZSCORE', Q, me.entry))
        ticket = string.format('%.0f', place >= UNFAIR and place - UNFAIR or place)
      end
    end
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
  local foreign = kind == 'f'
  return {0, call('PTTL', K), ticket or '', foreign and 1 or 0, foreign and heads(me.inbox) or 0}
end
