-- Leaves nothing of an owner: no place in the queue, no offer, no lease.
-- ARGV: who, queue entry, then the ms of a tombstone, if there has to be one.
if ARGV[3] then redis.call('SET', KEYS[#KEYS], '1', 'PX', ARGV[3]) end
--- draw
--- lib
call('ZREM', Q, ARGV[2], '!' .. ARGV[2])
local kind, who = holder()
if kind == 'x' then
  if who ~= ARGV[1] then return 0 end
  call('DEL', K)
  serve(nil)
  return 1
end
if kind == 's' then
  local held = call('ZREM', R, ARGV[1])
  local last = call('ZRANGE', R, -1, -1, 'WITHSCORES')
  if last[1] then
    -- Others than us look at the marker only: it ends with the last reader.
    local left = math.max(1, tonumber(last[2]) - math.floor(now() / 1000))
    call('PEXPIRE', K, left)
    call('PEXPIRE', R, left + 1000)
    admit(nil, false)
  else
    call('DEL', K)
    serve(nil)
  end
  return held
end
-- Free, and the head may be another now, or nobody but gates.
if not kind and call('EXISTS', Q) == 1 then serve(nil) end
return 0
