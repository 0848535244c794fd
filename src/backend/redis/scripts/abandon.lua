-- Leaves nothing of an owner: no place in the queue, no offer, no lease.
-- ARGV: owner, queue member, ms of a tombstone or '0'. Answers whether it held.
if KEYS[6] and ARGV[3] ~= '0' then redis.call('SET', KEYS[6], '1', 'PX', ARGV[3]) end
--- lib
call('ZREM', Q, ARGV[2], '!' .. ARGV[2])
local kind, owner = holder()
if kind == 'x' then
  if owner ~= ARGV[1] then return 0 end
  serve(nil)
  return 1
end
if kind == 's' then
  local held = call('ZREM', R, ARGV[1])
  call('HDEL', H, ARGV[1])
  local last = call('ZRANGE', R, -1, -1, 'WITHSCORES')
  if not last[1] then
    call('DEL', H)
    serve(nil)
  else
    -- Others than us look at the marker only: it ends with the last reader.
    local left = math.max(1, tonumber(last[2]) - math.floor(now() / 1000))
    call('PEXPIRE', K, left)
    call('PEXPIRE', R, left + 1000)
    call('PEXPIRE', H, left + 1000)
    admit(nil, false)
  end
  return held
end
-- Free, and the head may be another now.
if not kind and someone_waits() then serve(nil) end
return 0
