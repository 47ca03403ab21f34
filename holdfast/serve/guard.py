"""Who may ask a replica: gateways and controllers of its cluster, by the secret of its service.

The secret stands in the service's node, which only the cluster can read. Gateways add it to each
request, in place of whatever a client sent under that name; a replica compares. Health and metrics
are for everybody: they say one word, and numbers.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

from holdfast.wire.errors import Refused

# What gateways show to replicas: nobody guesses it.
SERVICE_SECRET_BYTES: Final = 32
# A service that gets a secret while it is served: gateways and replicas hear of it within a second,
# or as soon as the plane is back for them.
SERVICE_SECRET_GRACE_S: Final = 30.0


def new_secret() -> str:
    return secrets.token_hex(SERVICE_SECRET_BYTES)


class Guard:
    """What one replica asks for. A service of an earlier version has no secret, until a controller
    has given it one: then whoever comes without it is let in for a moment more, for gateways hear
    of it at another time than we do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._secret = self._former = b""
        self._known = False
        self._until_s = 0.0

    def configure(self, secret: str) -> None:
        """The service has this one now."""
        held = secret.encode()
        if held == self._secret and self._known:
            return
        if self._known:
            self._former, self._until_s = self._secret, self._clock() + SERVICE_SECRET_GRACE_S
        self._secret, self._known = held, True

    def admits(self, shown: bytes | None) -> bool:
        """Whether one that shows this may ask."""
        if not self._secret or hmac.compare_digest(shown or b"", self._secret):
            return True
        if self._clock() >= self._until_s:
            return False
        return not self._former or hmac.compare_digest(shown or b"", self._former)


def unknown() -> Refused:
    return Refused(
        "this replica answers its gateways only",
        why="the request does not have the secret of the service",
        fix="ask a gateway: holdfast services shows their addresses",
    )
