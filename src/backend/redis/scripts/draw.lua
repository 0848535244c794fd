local call = redis.call
-- Reserves n tokens of the counter F above all before, and returns the first.
local function draw(F, n)
  local time = call('TIME')
  local us = time[2]
  if #us < 6 then us = string.sub('00000' .. us, -6) end
  -- Sixteen digits until the year 2286, so texts compare as numbers do, at half the price. Lua's
  -- own conversion of such numbers would round them.
  local first = time[1] .. us
  local last = n > 1 and string.format('%.0f', first + n - 1) or first
  local before = call('SET', F, last, 'EX', '86400', 'GET')
  if before and before >= first then
    -- The clock was set back, or more was reserved than time has passed.
    -- Kept until a day after the clock will have passed it.
    local life = string.format('%.0f', 86400 + (before + n - first) / 1e6)
    first = string.format('%.0f', before + 1)
    call('SET', F, string.format('%.0f', before + n), 'EX', life)
  end
  return first
end
