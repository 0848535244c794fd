-- Whether nobody holds; else, with an entry, asks to be told. ARGV: queue entry or ''.
-- Answers {1}, or {0, ms until the holder's end, foreign?}.
--- draw
--- lib
local kind = holder()
if not kind and head('0') then
  serve(nil)
  kind = holder()
end
if not kind then return {1} end
if ARGV[1] ~= '' then
  call('ZADD', Q, string.format('%.0f', GATE), ARGV[1])
  call('PEXPIRE', Q, QUEUE_LIFE)
end
return {0, call('PTTL', K), kind == 'f' and 1 or 0}
