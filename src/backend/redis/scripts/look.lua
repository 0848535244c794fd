-- On behalf of a process that waits: serves the queue of a key whose holder has ended.
-- ARGV: inbox. Answers {ms until the holder's end, foreign?, head of this inbox?, anybody waits?}.
--- draw
--- lib
call('PEXPIRE', Q, QUEUE_LIFE)
local kind = holder()
if not kind then
  if call('EXISTS', Q) == 1 then serve(nil) end
elseif kind == 's' then
  admit(nil, true)
end
local foreign = kind == 'f'
return {call('PTTL', K), foreign and 1 or 0, foreign and heads(ARGV[1]) or 0, head('0') and 1 or 0}
