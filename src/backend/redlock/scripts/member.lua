-- Whether the process that runs this has all that it granted: it is marked as a member. Asked of
-- the process itself, as a proxy's connection may outlive one.
local function is_member(N)
  local member = redis.call('HGET', N, 'member')
  -- Searched as it is, which is faster than by a pattern.
  return member and string.find(redis.call('INFO', 'server'), '\nrun_id:' .. member .. '\r', 1, true)
end
