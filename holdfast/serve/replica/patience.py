"""How long a server waits for its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# A client that sends its body slower than this is hung up on.
BODY_S: Final = 30.0
# A connection on which nothing comes is closed after this: longer than Envoy keeps an idle one, so
# that it is Envoy who closes it, and no request meets a connection that is being closed.
HTTP_IDLE_S: Final = 2 * 3600.0
# A head that has begun is there within this, or its client is hung up on.
HTTP_HEAD_S: Final = 10.0
# A client that reads nothing of its answer for so long is hung up on.
HTTP_UNREAD_S: Final = 30.0
# Who was refused before all was read may still be sending. What comes is thrown away for so long:
# to hang up earlier would lose the answer on its way.
HTTP_LINGER_S: Final = 5.0
# How often connections are looked at for all of these.
HTTP_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """With a request's head and body, with one that does nothing, with one that does not read its
    answer, and with one that was refused and is still sending. `look_s`: how often that is seen."""

    head_s: float = HTTP_HEAD_S
    body_s: float = BODY_S
    idle_s: float = HTTP_IDLE_S
    unread_s: float = HTTP_UNREAD_S
    linger_s: float = HTTP_LINGER_S
    look_s: float = HTTP_LOOK_S
