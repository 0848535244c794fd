local call = redis.call
-- Gates stand behind all who want to hold.
local GATE = 9e15

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

-- The lock is free: the first of the waiters W is told, but for `me`, who knows.
local function wake(K, W, me)
  for _ = 1, 256 do
    local first = call('ZRANGE', W, '0', '0', 'WITHSCORES')
    if not first[1] or first[1] == me then return end
    if tonumber(first[2]) >= GATE then
      -- Nobody but those who wait for just this.
      for _, gate in ipairs(call('ZRANGE', W, 0, -1)) do
        local inbox = string.match(gate, '^gate (%S+)')
        if inbox then tell(inbox, 'f ' .. K) end
      end
      call('DEL', W)
      return
    end
    call('ZREM', W, first[1])
    local owner, inbox = string.match(first[1], '^(%S+) (%S+)$')
    if owner and tell(inbox, 'w ' .. owner .. ' ' .. K) then return end
  end
end

-- A waiter, since so many milliseconds, with its place by that time.
local function queue(W, who, waited)
  local time = call('TIME')
  local since = time[1] * 1000 + math.floor(time[2] / 1000) - waited
  call('ZADD', W, 'NX', string.format('%.0f', since), who)
  call('PEXPIRE', W, '15000')
end
