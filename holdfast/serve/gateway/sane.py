"""Values that Envoy understands, whatever somebody wrote down. Pure.

Envoy refuses a file as a whole: one service with a header's name that is none would keep all the
others from changing. So what cannot be is left out or bounded here, service by service.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Final

from holdfast.serve.records import BreakerPolicy, Limits, Service

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9_-])?")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$&'*+.^_`|~-]{1,200}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_UINT32_MAX: Final = 2**32 - 1
_DAY_S: Final = 86_400.0


def sane(service: Service) -> Service | None:
    """The service as Envoy can have it; None: under such a name it can have none."""
    if not _NAME.fullmatch(service.name):
        return None
    limits = service.limits
    return replace(
        service,
        model=service.model if _NAME.fullmatch(service.model) else service.name,
        sticky_header=service.sticky_header if _HEADER.fullmatch(service.sticky_header) else "",
        # A key that no digest can be stays a lock that nothing opens.
        keys=tuple(one for one in service.keys if _DIGEST.fullmatch(one)) or service.keys[:1],
        operator_keys=tuple(one for one in service.operator_keys if _DIGEST.fullmatch(one)),
        limits=replace(
            limits,
            timeout_s=_within(limits.timeout_s, 0.001, _DAY_S, Limits().timeout_s),
            body_bytes_max=int(_within(limits.body_bytes_max, 1, _UINT32_MAX, _UINT32_MAX)),
            rate_per_s=_within(limits.rate_per_s, 0.0, _UINT32_MAX, 0.0),
        ),
        breaker=_sane_breaker(service.breaker),
    )


def _sane_breaker(breaker: BreakerPolicy) -> BreakerPolicy:
    usual = BreakerPolicy()
    open_s = _within(breaker.open_s, 0.001, _DAY_S, usual.open_s)
    return BreakerPolicy(
        int(_within(breaker.failures, 1, _UINT32_MAX, usual.failures)),
        open_s,
        max(open_s, _within(breaker.open_s_max, 0.001, _DAY_S, usual.open_s_max)),
        _within(breaker.connect_s, 0.001, _DAY_S, usual.connect_s),
        int(_within(breaker.requests_max, 1, _UINT32_MAX, usual.requests_max)),
        _within(breaker.retry_percent, 0.0, 100.0, usual.retry_percent),
    )


@lru_cache(maxsize=1_024)
def literal(text: str) -> str:
    """A text as the value of a header: Envoy takes `%` for a command, and no line may end in it."""
    plain = "".join(one if " " <= one <= "~" else "?" for one in text)
    return plain.replace("%", "%%")


def _within(value: float, least: float, most: float, otherwise: float) -> float:
    return min(max(value, least), most) if math.isfinite(value) else otherwise
