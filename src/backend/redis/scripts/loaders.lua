-- All who wait for the record too leave the queue; each of their processes hears of it once.
local function tell_loaders()
  local told, gone = {}, {}
  for _, entry in ipairs(call('ZRANGE', Q, 0, -1)) do
    if string.sub(entry, -2) == ' r' then
      gone[#gone + 1] = entry
      local inbox = string.match(entry, '^%S+ (%S+)')
      if not told[inbox] then
        told[inbox] = true
        tell(inbox, 'd ' .. K)
      end
    end
  end
  for at = 1, #gone, 1000 do
    call('ZREM', Q, unpack(gone, at, math.min(at + 999, #gone)))
  end
end
