-- Extends one reader's lease. ARGV: who, ttl in ms.
--- draw
--- lib
local kind, _, token = holder()
if kind ~= 's' or not call('ZSCORE', R, ARGV[1]) then return 0 end
hold({who = ARGV[1], mode = 's', ttl = ARGV[2]}, token)
return 1
