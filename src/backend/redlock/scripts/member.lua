-- Whether the process that runs this has all that it granted: it is marked as a member. Asked of
-- the process itself, as a proxy's connection may outlive one.
local function is_member(N)
  local member = redis.call('HGET', N, 'member')
  return member and member == string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
end
