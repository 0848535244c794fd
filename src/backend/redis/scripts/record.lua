-- What a record says: 'c <token> <bytes>', a result; 'o <token> <owner> <n> <n bytes: what it took
-- the place of><bytes>', that this owner may have begun; 'f <token> ', only that this one was there.

-- Of an open record the token, the owner, what it took the place of, and where its bytes begin.
local function read_open(value)
  if not value then return nil end
  local token, owner, length, at = string.match(value, '^o (%d+) (%S+) (%d+) ()')
  if not token then return nil end
  at = at + length
  return token, owner, string.sub(value, at - length, at - 1), at
end

-- Tokens are texts of numbers that Lua may not be able to hold.
local function later(one, two)
  if #one ~= #two then return #one > #two end
  return one > two
end
