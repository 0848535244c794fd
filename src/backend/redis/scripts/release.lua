-- Gives an exclusive lease back. ARGV: its value.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 1
end
--- lib
serve(nil)
return 1
