-- Gives an exclusive lease back. ARGV: its value.
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
-- Before anything is offered: a server that is out of memory lets a script write once it deleted.
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 0 then return 1 end
--- draw
--- lib
serve(nil)
return 1
