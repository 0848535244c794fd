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

local function now()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Which processes were told and have not said anything since, and when that was.
local function silent(W)
  local since = {}
  local marks = call('ZRANGE', W, string.format('%.0f', TOLD), '+inf', 'BYSCORE', 'WITHSCORES')
  for i = 1, #marks, 2 do
    since[string.sub(marks[i], 6)] = tonumber(marks[i + 1]) - TOLD
  end
  return since
end

-- The lock is free: the first of the waiters W is told, but for `me`, who knows. A process that was
-- told and is silent is passed over: it may hang, and should cost no more than this once. One that
-- is gone, or silent for longer than any that runs, loses its places.
local function wake(K, W, me)
  local since, looked, gone, passed = silent(W), {}, {}, 0
  while true do
    local some = call('ZRANGE', W, passed, passed + 99, 'WITHSCORES')
    if not some[1] then return end
    for i = 1, #some, 2 do
      local entry = some[i]
      if entry == me then return end
      if tonumber(some[i + 1]) >= GATE then
        -- Nobody can be told but those who wait for just this.
        for _, gate in ipairs(call('ZRANGE', W, passed, -1)) do
          local inbox = string.match(gate, '^gate (%S+)')
          if inbox then
            tell(inbox, 'f ' .. K)
            call('ZREM', W, gate)
          end
        end
        if passed == 0 then call('DEL', W) end
        return
      end
      local owner, inbox = string.match(entry, '^(%S+) (%S+)$')
      if since[inbox] and not looked[inbox] then
        looked[inbox] = true
        gone[inbox] = now() - since[inbox] > 15000 or not tell(inbox, 'p')
        if gone[inbox] then call('ZREM', W, 'told ' .. inbox) end
      end
      if since[inbox] and not gone[inbox] then
        passed = passed + 1
      else
        call('ZREM', W, entry)
        if owner and not gone[inbox] and tell(inbox, 'w ' .. owner .. ' ' .. K) then
          -- Where nobody else waits there is nobody to be passed over.
          if call('EXISTS', W) == 1 then
            call('ZADD', W, string.format('%.0f', TOLD + now()), 'told ' .. inbox)
          end
          return
        end
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
  call('ZADD', W, 'NX', string.format('%.0f', now() - waited), who)
  call('PEXPIRE', W, '15000')
end
