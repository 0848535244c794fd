local K, Q, F, R = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
-- Scores: tickets; those who wait without order behind them; gates behind all.
local UNFAIR, GATE = 4.2e15, 9e15
-- Texts, since a call would make one of a number, at the price of another call.
local OFFER, QUEUE_LIFE = '1000', '15000'

-- Microseconds of the server's clock, asked once: a script is one moment.
local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = time[1] * 1000000 + time[2]
  end
  return clock
end

-- Who holds: nil, 'x' or 's' with who (the owner and its inbox, or stars) and the token, or 'f'
-- for what we did not write.
local function holder()
  local value = redis.pcall('GET', K)
  if not value then return nil end
  if type(value) ~= 'string' then return 'f' end
  local who, token = string.match(value, '^1 (%S+ %S+) (%d+)$')
  if not who then return 'f' end
  if who ~= '* *' then return 'x', who, token end
  -- Readers whose lease has ended go.
  call('ZREMRANGEBYSCORE', R, '-inf', string.format('%.0f', math.floor(now() / 1000)))
  if call('EXISTS', R) == 0 then
    call('DEL', K)
    return nil
  end
  return 's', who, token
end

-- A queue entry: an owner, its inbox, what it wants, ' r' if that is a record too; '!' before one
-- whose offer is open or has lapsed.
local function read(entry)
  -- Anchored, as all patterns here: others are tried at each place of a text, to its end.
  local offered, owner, inbox, mode, ttl, tokens =
    string.match(entry, '^(!?)(%S+) (%S+) (%a) (%d+) (%d+) ?r?$')
  return {
    entry = entry, offered = offered == '!', owner = owner, inbox = inbox,
    who = owner .. ' ' .. inbox, mode = mode, ttl = ttl, tokens = tokens,
  }
end

-- The waiter at this place of the queue, gates aside.
local function head(at)
  local entry = call('ZRANGE', Q, at, at, 'WITHSCORES')
  local score = tonumber(entry[2] or GATE)
  if score >= GATE then return nil end
  local waiter = read(entry[1])
  waiter.score, waiter.place = score, entry[2]
  return waiter
end

-- Whether somebody has not even an offer.
local function someone_unserved()
  for at = 0, 511 do
    local waiter = head(at)
    if not waiter then return false end
    if not waiter.offered then return true end
  end
  return true
end

local function fifo_waits()
  local first = head('0')
  return first ~= nil and first.score < UNFAIR
end

-- Whether the first in line hears by this inbox; a gate is not in line.
local function heads(inbox)
  local entry = call('ZRANGE', Q, '0', '0')[1]
  if not entry or string.sub(entry, 1, 5) == 'gate ' then return 0 end
  return string.find(entry, ' ' .. inbox .. ' ', 1, true) and 1 or 0
end

-- Whether it was not there yet.
local function enqueue(entry, unfair, ticket)
  if unfair then ticket = string.format('%.0f', ticket + UNFAIR) end
  local added = call('ZADD', Q, 'NX', ticket, entry)
  call('PEXPIRE', Q, QUEUE_LIFE)
  return added
end

-- Whether a process is there to hear it.
local function tell(inbox, message)
  -- That of a slot of a Cluster ends with its tag: a plain message reaches one node only.
  local publish = string.sub(inbox, -1) == '}' and 'SPUBLISH' or 'PUBLISH'
  local heard = redis.pcall(publish, inbox, message)
  return type(heard) == 'number' and heard > 0
end

-- Takes the entries of a process out that is gone or hangs: it asks again when it can, with its
-- tickets. `but` is alive: it asks right now.
local function evict(inbox, but)
  local at, entries = 0, nil
  repeat
    entries = call('ZRANGE', Q, at, at + 999)
    for _, entry in ipairs(entries) do
      if entry ~= but and string.find(entry, ' ' .. inbox .. ' ', 1, true) then
        call('ZREM', Q, entry)
      else
        at = at + 1
      end
    end
  until #entries < 1000
  tell(inbox, 'x ' .. K)
end

-- Nobody waits: those who waited for just that are told, once for each process.
local function open_gates()
  local told = {}
  for _, gate in ipairs(call('ZRANGE', Q, 0, -1)) do
    local inbox = string.match(gate, '^gate (%S+)')
    if inbox and not told[inbox] then
      told[inbox] = true
      tell(inbox, 'f ' .. K)
    end
  end
  call('DEL', Q)
end

-- The waiter holds from now; a reader beside others. The readers' marker outlives the last of
-- them, and carries the token of all that hold together.
local function hold(waiter, token)
  local ttl = waiter.ttl
  if waiter.mode == 'x' then
    call('SET', K, '1 ' .. waiter.who .. ' ' .. token, 'PX', ttl)
    return
  end
  call('ZADD', R, string.format('%.0f', math.floor(now() / 1000) + ttl), waiter.who)
  local left = math.max(call('PTTL', K), tonumber(ttl))
  if redis.pcall('GET', K) ~= '1 * * ' .. token then left = tonumber(ttl) end
  call('SET', K, '1 * * ' .. token, 'PX', left)
  call('PEXPIRE', R, left + 1000)
end

-- The token of a grant: readers share that of those whom they join.
local function next_token(waiter)
  if waiter.mode == 's' then
    local kind, _, token = holder()
    if kind == 's' then return token end
  end
  return draw(F, tonumber(waiter.tokens))
end

-- For the caller itself, which needs no offer.
local function take(waiter)
  local token = next_token(waiter)
  hold(waiter, token)
  return token
end

-- Offers a place to a waiter; whether its process heard.
local function offer(waiter)
  local token = next_token(waiter)
  if not tell(waiter.inbox, 'g ' .. waiter.owner .. ' ' .. K .. ' ' .. token) then
    evict(waiter.inbox, nil)
    return false
  end
  if tonumber(waiter.ttl) > tonumber(OFFER) then waiter.ttl = OFFER end
  hold(waiter, token)
  -- Stays until it is confirmed, marked: if the offer lapses its process hangs. Never empty in
  -- between, or the queue would lose its end.
  call('ZADD', Q, waiter.place, '!' .. waiter.entry)
  call('ZREM', Q, waiter.entry)
  return true
end

-- Readers hold: those at the head of the queue may join. Returns the token of `me` if it may.
-- A writer ends the line; `probe` asks whether its process is still there.
local function admit(me, probe)
  local at, mine = 0, nil
  for _ = 1, 512 do
    local waiter = head(at)
    if not waiter then break end
    if waiter.mode ~= 's' then
      if not probe or tell(waiter.inbox, 'n') then break end
      evict(waiter.inbox, me and me.entry)
      -- Some of those before may be gone too: begin again.
      at = 0
    elseif me and waiter.entry == me.entry then
      call('ZREM', Q, me.entry)
      mine = take(me)
    elseif not waiter.offered then
      at = offer(waiter) and at + 1 or 0
    elseif call('ZSCORE', R, waiter.who) then
      at = at + 1
    else
      evict(waiter.inbox, me and me.entry)
      at = 0
    end
  end
  return mine
end

-- Nobody holds any more: the head of the queue gets the key, never a newcomer before it.
-- Returns the token of `me` if it is the head.
local function serve(me)
  for _ = 1, 64 do
    local waiter = head('0')
    if not waiter then
      call('DEL', K)
      if call('EXISTS', Q) == 1 then open_gates() end
      return
    end
    -- Readers would take an old value for theirs.
    if waiter.mode == 's' then call('DEL', K) end
    if me and waiter.entry == me.entry then
      call('ZREM', Q, me.entry)
      local token = take(me)
      if me.mode == 's' then admit(nil, false) end
      return token
    elseif waiter.offered then
      evict(waiter.inbox, me and me.entry)
    elseif waiter.score >= UNFAIR then
      -- Woken, not granted: whoever comes first has it.
      call('ZREM', Q, waiter.entry)
      if tell(waiter.inbox, 'w ' .. waiter.owner .. ' ' .. K) then
        call('DEL', K)
        return
      end
      evict(waiter.inbox, me and me.entry)
    elseif offer(waiter) then
      if waiter.mode == 's' then return admit(me, false) end
      return
    end
  end
  call('DEL', K)
end
