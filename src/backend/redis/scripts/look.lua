-- On behalf of a process that waits: serves the queue of a key whose holder has ended.
-- ARGV: inbox. Answers {ms until the holder's end, foreign?, head of this inbox?, anybody waits?}.
--- lib
call('PEXPIRE', Q, QUEUE_LIFE)
local kind = holder()
if not kind then
  if head('0') then serve(nil) end
elseif kind == 's' then
  admit(nil, true)
end
return {call('PTTL', K), kind == 'f' and 1 or 0, heads(ARGV[1]), head('0') and 1 or 0}
