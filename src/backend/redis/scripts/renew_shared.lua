-- Extends one reader's lease. ARGV: owner, inbox, ttl in ms.
--- lib
if holder() ~= 's' then return 0 end
local token = read_token(ARGV[1])
if not token then return 0 end
let_read(ARGV[1], ARGV[2], token, ARGV[3])
return 1
