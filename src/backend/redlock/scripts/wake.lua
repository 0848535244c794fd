local call = redis.call
-- Gates stand behind all who want to hold, and who was told behind these.
local GATE, TOLD = 9e15, 9.001e15

-- Whether a process is there to hear it.
local function tell(inbox, message)
  local heard = redis.pcall('PUBLISH', inbox, message)
  return type(heard) == 'number' and heard > 0
end

-- Who stands in the lock K: nothing, or an owner of ours, its ballot, inbox and token, or '?'.
local function holder(K)
  local value = redis.pcall('GET', K)
  if not value then return nil end
  if type(value) ~= 'string' then return '?' end
  local owner, ballot, inbox, token = string.match(value, '^r1 (%x+) (%d+) (%S+) (%d+)$')
  return owner or '?', tonumber(ballot), inbox, token
end

-- Which processes were told, and have not said anything since.
local function silent(W)
  local inboxes = {}
  for _, mark in ipairs(call('ZRANGE', W, string.format('%.0f', TOLD), '+inf', 'BYSCORE')) do
    inboxes[string.sub(mark, 6)] = true
  end
  return inboxes
end

-- The lock is free: the first of the waiters W is told, but for `me`, who knows. A process that was
-- told and is silent is passed over: it may hang, and should cost no more than this once.
local function wake(K, W, me)
  local passed, silent = 0, silent(W)
  for _ = 1, 256 do
    local first = call('ZRANGE', W, passed, passed, 'WITHSCORES')
    if not first[1] or first[1] == me then return end
    if tonumber(first[2]) >= GATE then
      if passed > 0 then return end
      -- Nobody but those who wait for just this.
      for _, gate in ipairs(call('ZRANGE', W, 0, -1)) do
        local inbox = string.match(gate, '^gate (%S+)')
        if inbox then tell(inbox, 'f ' .. K) end
      end
      call('DEL', W)
      return
    end
    local owner, inbox = string.match(first[1], '^(%S+) (%S+)$')
    if silent[inbox] then
      passed = passed + 1
    else
      call('ZREM', W, first[1])
      if owner and tell(inbox, 'w ' .. owner .. ' ' .. K) then
        -- Where nobody else waits there is nobody to be passed over.
        if call('EXISTS', W) == 1 then
          call('ZADD', W, string.format('%.0f', TOLD), 'told ' .. inbox)
        end
        return
      end
    end
  end
end

-- A process says something.
local function heard(W, inbox)
  call('ZREM', W, 'told ' .. inbox)
end

-- A waiter, since so many milliseconds, with its place by that time.
local function queue(W, who, waited)
  local time = call('TIME')
  local since = time[1] * 1000 + math.floor(time[2] / 1000) - waited
  call('ZADD', W, 'NX', string.format('%.0f', since), who)
  call('PEXPIRE', W, '15000')
end
