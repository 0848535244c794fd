-- Looks the record up, or acquires, asks again, or confirms as a step does, and opens the record.
-- KEYS: those of a lock, the record, then a tombstone to look for.
-- ARGV: as of a step, the tokens always, the ticket perhaps empty; then 'r' to replace an orphan,
-- 'e' to replace it if it has the same bytes, 'k' to keep it, or '-' to open no record; the ttl in
-- ms and the bytes of what is opened; 'a' if a result is for all, 'w' if for those who wait; and the
-- token that was held when this one began to wait, perhaps empty.
-- Answers {'=', record}, {'+', token, what its open record took the place of}, {0, .. as a step,
-- record, the token that is held}, or {-1} to an owner that was undone.
if KEYS[6] and redis.call('EXISTS', KEYS[6]) == 1 then return {-1} end
--- draw
--- record
local value = call('GET', KEYS[5])
local mine = string.match(ARGV[1], '^%S+')

local closed = value and string.byte(value) == 99

-- The result for this request, if there is one.
local function result()
  if ARGV[10] ~= 'w' then return closed and value end
  local _, _, before = read_open(value)
  local text = closed and value or before or ''
  local token = string.match(text, '^c (%d+) ')
  if token and ARGV[11] ~= '' and not later(ARGV[11], token) then return text end
end

-- The orphan that is the answer where nobody holds.
local function orphan()
  if closed or not value or ARGV[7] == '-' then return nil end
  local _, owner, _, at = read_open(value)
  if not owner or ARGV[7] == 'r' or owner == mine then return nil end
  if ARGV[7] == 'k' or string.sub(value, at) ~= ARGV[9] then return value end
end

local function granted(token)
  local before, stood, owner, at = '', nil, nil, nil
  stood, owner, before, at = read_open(value)
  if closed then
    -- For those who waited, and have not looked yet: up to 256 bytes, and a head.
    before = #value <= 280 and value or 'f ' .. string.match(value, '^c (%d+) ') .. ' '
  elseif not stood then
    before = value or ''
  elseif owner ~= mine then
    before = 'o ' .. stood .. ' ' .. owner .. ' 0 ' .. string.sub(value, at)
  end
  if ARGV[7] ~= '-' then
    local head = 'o ' .. token .. ' ' .. mine .. ' ' .. #before .. ' '
    call('SET', KEYS[5], head .. before .. ARGV[9], 'PX', ARGV[8])
  end
  return {'+', token, before}
end

-- The common case, before more is defined: nobody holds, nobody waits.
if call('EXISTS', KEYS[1], KEYS[2]) == 0 then
  local found = result() or orphan()
  if found then return {'=', found} end
  local token = draw(KEYS[3], tonumber(ARGV[5]))
  local answer = granted(token)
  call('SET', KEYS[1], '1 ' .. ARGV[1] .. ' ' .. token, 'PX', ARGV[3])
  return answer
end
--- lib
--- ask
--- loaders
local me = wish(' r')
local kind, who, token = holder()
if kind == 'x' and string.match(who, '^%S+') == mine then
  call('ZREM', Q, me.entry)
  if call('ZREM', Q, '!' .. me.entry) == 0 then
    -- It holds, and has not heard of it.
    hold(me, token)
    local _, owner, before = read_open(value)
    if owner == mine then return {'+', token, before} end
    if closed then return {'+', token, ''} end
    -- By a script that the move of a slot broke off.
    return granted(token)
  end
  local found = result() or orphan()
  if not found then
    hold(me, token)
    return granted(token)
  end
  call('DEL', K)
  tell_loaders()
  serve(nil)
  return {'=', found}
end
local found = result() or not kind and orphan()
if found then
  call('ZREM', Q, me.entry, '!' .. me.entry)
  if kind == 's' then
    admit(nil, false)
  elseif not kind and call('EXISTS', Q) == 1 then
    serve(nil)
  end
  return {'=', found}
end
local answer = ask(me, ARGV[6] ~= '' and ARGV[6] or nil)
if type(answer) == 'string' then return granted(answer) end
local _, _, held = holder()
-- Of a foreign holder nothing is known: its own ticket is below every token to come, too.
answer[6], answer[7] = value or '', held or answer[3]
return answer
