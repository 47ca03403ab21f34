"""The one script that writes rows: of two rows of one key the larger bytes stay, whoever writes
them in whichever order, and a row goes when it is too old.

Strings of Lua are not compared with `<`: that goes by the server's locale (`strcoll`). Nor are they
made numbers: a double does not hold a time in microseconds. Bytes are compared, one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from redis.exceptions import NoScriptError

from holdfast.features.layout import FLAGS_AT, HEADER_BYTES
from holdfast.features.online.resp import pack

# A row that was deleted is remembered at least so long: what is written meanwhile, and is older,
# does not come back. Cassandra's `gc_grace_seconds`, so that both engines promise the same.
DELETED_KEPT_S: Final = 864_000.0

_NEVER: Final = b"-"
# Beyond it a number of Lua is no whole number any more: 142,000 years.
_MS_MAX: Final = 2**52

# KEYS: of the rows. ARGV: for how many ms a deleted row is kept at least; then for each key its
# row, and when that is over (ms since 1970, or "-"). Answers for each 1: it is written, or 0: a
# newer one was there, or this very one, or its time is over.
#
# Before it reads a whole row it looks at the first bytes of the one that is there: mostly the
# versions differ.
SCRIPT: Final = f"""
local function larger(a, b)
  local n, i = math.min(#a, #b), 1
  while i <= n do
    local j = math.min(i + 255, n)
    if string.sub(a, i, j) ~= string.sub(b, i, j) then
      for k = i, j do
        local x, y = string.byte(a, k), string.byte(b, k)
        if x ~= y then return x > y end
      end
    end
    i = j + 1
  end
  return #a > #b
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kept = now + tonumber(ARGV[1])
local answers = {{}}
for i, key in ipairs(KEYS) do
  local new, over = ARGV[2 * i], tonumber(ARGV[2 * i + 1])
  if string.byte(new, {FLAGS_AT + 1}) % 2 == 1 then over = math.max(over or 0, kept) end
  local answer = 0
  if not over or over > now then
    local old = redis.call('GETRANGE', key, 0, {HEADER_BYTES - 1})
    local head = string.sub(new, 1, {HEADER_BYTES})
    if old == head then
      head, old = new, redis.call('GET', key)
    end
    if larger(head, old) then
      if over then
        redis.call('SET', key, new, 'PXAT', string.format('%.0f', over))
      else
        redis.call('SET', key, new)
      end
      answer = 1
    end
  end
  answers[i] = answer
end
return answers
""".encode()
_SHA: Final = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()


def over_at(data: bytes, ttl_s: float | None) -> bytes:
    """When the time of a row is over, as the script takes it."""
    if ttl_s is None:
        return _NEVER
    at_us = int.from_bytes(data[:8], "big") - (1 << 63)
    return b"%d" % min(at_us // 1_000 + round(1_000 * ttl_s), _MS_MAX)


def call(
    keys: Sequence[bytes], rows: Sequence[tuple[bytes, bytes]], *, whole: bool = False
) -> bytes:
    """The packed command that writes rows, each with when it is over. The script is sent by its
    name; `whole`: with all of it, to a server that does not know it yet."""
    kept = b"%d" % round(1_000 * DELETED_KEPT_S)
    words = (b"EVAL", SCRIPT) if whole else (b"EVALSHA", _SHA)
    values = [part for row in rows for part in row]
    return pack(*words, b"%d" % len(keys), *keys, kept, *values)


def is_unknown(reply: object) -> bool:
    """Whether a server says that it does not know the script by its name."""
    return isinstance(reply, NoScriptError)
