"""How long a server waits for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.wire.limits import (
    BODY_S,
    HTTP_HEAD_S,
    HTTP_IDLE_S,
    HTTP_LINGER_S,
    HTTP_LOOK_S,
    HTTP_UNREAD_S,
)


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
