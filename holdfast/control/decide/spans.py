"""How long something has lasted, by clocks that differ between leaders and may be set. Pure."""

from __future__ import annotations


def lasts(since_s: float, span_s: float, now_s: float) -> bool:
    """Whether the span that began at `since_s` is not over at `now_s`.

    A beginning that lies further in the future than the span is long was written by another clock,
    or before this one was set back. Nobody waits for it: it would be for as long as the clocks
    differ, an hour perhaps.
    """
    return abs(now_s - since_s) < span_s
