local K, Q, F, R, H = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local call = redis.call
-- Scores: tickets; those who wait without order behind them; gates behind all.
local UNFAIR, GATE = 4.2e15, 9e15
local OFFER, QUEUE_LIFE = 1000, 15000

-- Microseconds of the server's clock, asked once: a script is one moment.
local clock
local function now()
  if not clock then
    local time = call('TIME')
    clock = time[1] * 1000000 + time[2]
  end
  return clock
end

-- Reserves n tokens above all before, and returns the first. A plain number in text: Lua's own
-- conversion rounds to 14 digits.
local function draw(n)
  local first = (tonumber(call('GET', F) or 0) or 0) + 1
  if first < now() then first = now() end
  call('SET', F, string.format('%.0f', first + n - 1), 'EX', 86400)
  return string.format('%.0f', first)
end

-- Who holds: nil, 'x' with its owner and token, 's' for readers, 'f' for what we did not write.
local function holder()
  local value = redis.pcall('GET', K)
  if not value then return nil end
  if type(value) ~= 'string' then return 'f' end
  local owner, token = string.match(value, '^1 (%S+) (%d+) %S+$')
  if not owner then return 'f' end
  if owner ~= '*' then return 'x', owner, token end
  -- Readers whose lease has ended go.
  local ended = call('ZRANGEBYSCORE', R, '-inf', string.format('%.0f', now() / 1000), 'LIMIT', 0, 1000)
  if #ended > 0 then
    call('ZREM', R, unpack(ended))
    call('HDEL', H, unpack(ended))
  end
  if call('EXISTS', R) == 0 then
    call('DEL', K, H)
    return nil
  end
  return 's'
end

-- A queue entry; '!' before one whose offer is open or has lapsed.
local function read(entry)
  local offered, owner, inbox, mode, ttl, tokens =
    string.match(entry, '^(!?)(%x+) (%S+) (%a) (%d+) (%d+)$')
  return {offered = offered == '!', owner = owner, inbox = inbox, mode = mode, ttl = ttl, tokens = tokens}
end

local function head(at)
  local entry = call('ZRANGE', Q, at, at, 'WITHSCORES')
  local score = tonumber(entry[2] or GATE)
  if score < GATE then return entry[1], score end
end

local function someone_waits() return head(0) ~= nil end

-- Whether somebody has not even an offer.
local function someone_unserved()
  for at = 0, 511 do
    local entry = head(at)
    if not entry then return false end
    if string.sub(entry, 1, 1) ~= '!' then return true end
  end
  return true
end

local function fifo_waits()
  local _, score = head(0)
  return score ~= nil and score < UNFAIR
end

local function heads(inbox)
  local entry = head(0)
  return entry and read(entry).inbox == inbox and 1 or 0
end

local function enqueue(entry, order, ticket)
  if order == 'u' then ticket = string.format('%.0f', ticket + UNFAIR) end
  call('ZADD', Q, 'NX', ticket, entry)
  call('PEXPIRE', Q, QUEUE_LIFE)
end

-- Whether a process is there to hear it.
local function tell(inbox, message)
  local heard = redis.pcall('PUBLISH', inbox, message)
  return type(heard) == 'number' and heard > 0
end

-- Takes the entries of a process out that is gone or hangs: it asks again when it can, with its
-- tickets. `but` is alive: it asks right now.
local function evict(inbox, but)
  for _, entry in ipairs(call('ZRANGE', Q, 0, 9999)) do
    if entry ~= but and string.find(entry, ' ' .. inbox .. ' ', 1, true) then
      call('ZREM', Q, entry)
    end
  end
  tell(inbox, 'x ' .. K)
end

-- Nobody waits: those who waited for just that are told, once for each process.
local function open_gates()
  local told = {}
  for _, gate in ipairs(call('ZRANGEBYSCORE', Q, GATE, '+inf')) do
    local inbox = string.match(gate, '^gate (%S+)')
    if inbox and not told[inbox] then
      told[inbox] = true
      tell(inbox, 'f ' .. K)
    end
  end
  call('DEL', Q)
end

local function read_token(owner)
  local held = call('HGET', H, owner)
  return held and string.match(held, '^(%d+)')
end

-- A reader holds from now, beside others. The marker in K outlives the last of them.
local function let_read(owner, inbox, token, ttl)
  call('ZADD', R, string.format('%.0f', math.floor(now() / 1000) + ttl), owner)
  call('HSET', H, owner, token .. ' ' .. inbox)
  local left = call('PTTL', K)
  if redis.pcall('GET', K) ~= '1 * 0 -' then
    call('SET', K, '1 * 0 -', 'PX', ttl)
    left = tonumber(ttl)
  elseif left < tonumber(ttl) then
    call('PEXPIRE', K, ttl)
    left = tonumber(ttl)
  end
  call('PEXPIRE', R, left + 1000)
  call('PEXPIRE', H, left + 1000)
end

local function hold(owner, inbox, mode, token, ttl)
  if mode == 's' then
    let_read(owner, inbox, token, ttl)
  else
    call('SET', K, '1 ' .. owner .. ' ' .. token .. ' ' .. inbox, 'PX', ttl)
  end
end

-- For the caller itself, which needs no offer.
local function take(owner, inbox, mode, ttl, tokens)
  local token = draw(tokens)
  hold(owner, inbox, mode, token, ttl)
  return token
end

-- Offers a place to the entry; whether its process heard.
local function offer(entry, score, who)
  local token = draw(who.tokens)
  if not tell(who.inbox, 'g ' .. who.owner .. ' ' .. K .. ' ' .. token) then
    evict(who.inbox, nil)
    return false
  end
  hold(who.owner, who.inbox, who.mode, token, math.min(tonumber(who.ttl), OFFER))
  -- Stays until it is confirmed, marked: if the offer lapses its process hangs. Never empty in
  -- between, or the queue would lose its end.
  call('ZADD', Q, string.format('%.0f', score), '!' .. entry)
  call('ZREM', Q, entry)
  return true
end

-- Readers hold: those at the head of the queue may join. Returns the token of `me` if it may.
-- A writer ends the line; `probe` asks whether its process is still there.
local function admit(me, probe)
  local at, mine = 0, nil
  for _ = 1, 512 do
    local entry, score = head(at)
    if not entry then break end
    local who = read(entry)
    if who.mode ~= 's' then
      if not probe or tell(who.inbox, 'n') then break end
      evict(who.inbox, me)
      -- Also of those before: begin again.
      at = 0
    elseif entry == me then
      call('ZREM', Q, me)
      mine = take(who.owner, who.inbox, 's', who.ttl, who.tokens)
    elseif not who.offered then
      at = offer(entry, score, who) and at + 1 or 0
    elseif read_token(who.owner) then
      at = at + 1
    else
      evict(who.inbox, me)
      at = 0
    end
  end
  return mine
end

-- Nobody holds any more: the head of the queue gets the key, never a newcomer before it.
-- Returns the token of `me` if it is the head.
local function serve(me)
  for _ = 1, 64 do
    local entry, score = head(0)
    if not entry then
      call('DEL', K)
      if call('EXISTS', Q) == 1 then open_gates() end
      return
    end
    local who = read(entry)
    if entry == me then
      call('ZREM', Q, me)
      local token = take(who.owner, who.inbox, who.mode, who.ttl, who.tokens)
      if who.mode == 's' then admit(nil, false) end
      return token
    elseif who.offered then
      evict(who.inbox, me)
    elseif score >= UNFAIR then
      -- Woken, not granted: whoever comes first has it.
      call('ZREM', Q, entry)
      if tell(who.inbox, 'w ' .. who.owner .. ' ' .. K) then
        call('DEL', K)
        return
      end
      evict(who.inbox, me)
    elseif who.mode == 's' then
      call('DEL', K)
      if offer(entry, score, who) then return admit(me, false) end
    elseif offer(entry, score, who) then
      return
    end
  end
  call('DEL', K)
end
