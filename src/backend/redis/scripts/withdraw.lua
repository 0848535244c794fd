-- As abandon, of an owner that was not told that it holds: its open record goes too, and what it
-- took the place of comes back. KEYS: those of a lock, the record, then a tombstone to leave.
--- record
local _, opener, before = read_open(redis.call('GET', KEYS[5]))
if opener and opener == string.match(ARGV[1], '^%S+') then
  if before == '' then
    redis.call('DEL', KEYS[5])
  else
    redis.call('SET', KEYS[5], before, 'KEEPTTL')
  end
end
--- abandon
