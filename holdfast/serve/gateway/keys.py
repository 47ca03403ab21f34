"""API keys in Envoy. Pure: a program in Lua, as text.

Only the SHA-256 of a key is stored, and Envoy's own filter for keys compares the keys themselves;
its Lua has no hash function either. So the digest is computed here, in Lua (LuaJIT's `bit`), and
looked up among those of the route. A key that was right is remembered by its text, in each worker
thread: the digest is computed once. `docs/decisions/0007` has the other ways, and why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

FILTER: Final = "envoy.filters.http.lua"
# The program's name among those that the listener has.
PROGRAM: Final = "keys"

# A key comes as `Authorization: Bearer KEY` or `X-Api-Key: KEY`, and goes no further.
LUA: Final = """
local bit = require("bit")
local band, bor, bxor, bnot = bit.band, bit.bor, bit.bxor, bit.bnot
local rshift, ror, tobit, tohex = bit.rshift, bit.ror, bit.tobit, bit.tohex

local ROUND = {}
local START = {}
do
  local primes, candidate = {}, 2
  while #primes < 64 do
    local prime = true
    for _, known in ipairs(primes) do
      if candidate % known == 0 then prime = false break end
    end
    if prime then primes[#primes + 1] = candidate end
    candidate = candidate + 1
  end
  for place, prime in ipairs(primes) do
    local root = prime ^ (1 / 3)
    ROUND[place] = tobit(math.floor((root - math.floor(root)) * 4294967296))
    if place <= 8 then
      local square = math.sqrt(prime)
      START[place] = tobit(math.floor((square - math.floor(square)) * 4294967296))
    end
  end
end

local function word(text, at)
  local a, b, c, d = string.byte(text, at, at + 3)
  return bor(a * 16777216, b * 65536, c * 256, d)
end

local function number(value)
  return string.char(band(rshift(value, 24), 255), band(rshift(value, 16), 255),
                     band(rshift(value, 8), 255), band(value, 255))
end

local function sha256(text)
  local length = #text
  local padded = text .. "\\128" .. string.rep("\\0", (55 - length) % 64)
                 .. number(0) .. number(length * 8)
  local state = {unpack(START)}
  local w = {}
  for block = 1, #padded, 64 do
    for i = 1, 16 do w[i] = word(padded, block + (i - 1) * 4) end
    for i = 17, 64 do
      local x, y = w[i - 15], w[i - 2]
      local s0 = bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
      local s1 = bxor(ror(y, 17), ror(y, 19), rshift(y, 10))
      w[i] = tobit(w[i - 16] + s0 + w[i - 7] + s1)
    end
    local a, b, c, d, e, f, g, h = unpack(state)
    for i = 1, 64 do
      local s1 = bxor(ror(e, 6), ror(e, 11), ror(e, 25))
      local t1 = tobit(h + s1 + bxor(band(e, f), band(bnot(e), g)) + ROUND[i] + w[i])
      local s0 = bxor(ror(a, 2), ror(a, 13), ror(a, 22))
      local t2 = tobit(s0 + bxor(band(a, b), band(a, c), band(b, c)))
      h, g, f, e, d, c, b, a = g, f, e, tobit(d + t1), c, b, a, tobit(t1 + t2)
    end
    for i, value in ipairs({a, b, c, d, e, f, g, h}) do state[i] = tobit(state[i] + value) end
  end
  local hex = {}
  for i = 1, 8 do hex[i] = tohex(state[i]) end
  return table.concat(hex)
end

local digests, remembered = {}, 0

local function digest(key)
  local known = digests[key]
  if known then return known, true end
  return sha256(key), false
end

function envoy_on_request(handle)
  local accepted = handle:metadata():get("keys")
  if accepted == nil then return end
  local headers = handle:headers()
  local key = headers:get("x-api-key")
  if key == nil then
    local bearer = headers:get("authorization")
    if bearer ~= nil then key = string.match(bearer, "^[Bb]earer +(%S+)$") end
  end
  if key ~= nil and #key <= 1024 then
    local found, old = digest(key)
    if accepted[found] then
      if not old and remembered < 10000 then
        digests[key], remembered = found, remembered + 1
      end
      headers:remove("x-api-key")
      headers:remove("authorization")
      return
    end
  end
  local service = handle:metadata():get("operator")
  if service ~= nil then
    local what = "this needs a key of an operator"
    if key ~= nil then what = "this key is no operator's" end
    handle:respond({[":status"] = "403"},
                   what .. "\\nwhy: it would change what " .. service
                   .. " has loaded\\nfix: holdfast key add " .. service
                   .. " --operator makes one; send it as Authorization: Bearer KEY")
    return
  end
  -- The service is not named: without a key nobody is told what there is.
  if key == nil then
    handle:respond({[":status"] = "401", ["www-authenticate"] = "Bearer"},
                   "an API key is needed\\nwhy: none came with the request\\nfix: send it as "
                   .. "Authorization: Bearer KEY; holdfast key add SERVICE makes one")
    return
  end
  handle:respond({[":status"] = "401", ["www-authenticate"] = 'Bearer error="invalid_token"'},
                 "this API key is wrong\\nwhy: it opens nothing here: it is another service's, "
                 .. "mistyped, or was removed\\nfix: holdfast services SERVICE shows how the "
                 .. "SHA-256 of its keys begin; holdfast key add SERVICE makes one")
end
"""


def enabled() -> dict[str, Any]:
    """On a route: that it asks for a key."""
    kind = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.LuaPerRoute"
    return {"@type": kind, "name": PROGRAM}


def metadata(keys: Sequence[str]) -> dict[str, Any]:
    """What the program finds on a route: the digests of the keys that open it."""
    return {FILTER: {"keys": dict.fromkeys(sorted(keys), True)}}


def operator_metadata(service: str, keys: Sequence[str]) -> dict[str, Any]:
    """As `metadata`, of a route that is for operators alone: without any key it is locked."""
    opened = dict.fromkeys(sorted(keys) or ["none"], True)
    return {FILTER: {"keys": opened, "operator": service}}
