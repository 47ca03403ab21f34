"""Who is alive, by an explicit time.

Sessions are kept in buckets of a tick: a session ends at the first tick after its time-out, so
that a touch is a move between two buckets, and often no move at all. ZooKeeper rounds the same.
"""

from __future__ import annotations

from holdfast.wire.limits import TICK_MS


class SessionTable:
    """When each open session was last heard of. All times are those of one clock."""

    def __init__(self, tick_ms: int = TICK_MS) -> None:
        self._tick_ms = tick_ms
        # id -> [time-out, end]; `end` is also the key of its bucket.
        self._sessions: dict[int, list[int]] = {}
        self._buckets: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: int) -> bool:
        return session in self._sessions

    def open(self, session: int, timeout_ms: int, now_ms: int) -> None:
        """Begin (or begin again) to count a session's time."""
        self.close(session)
        end = self._round(now_ms + timeout_ms)
        self._sessions[session] = [timeout_ms, end]
        self._buckets.setdefault(end, {})[session] = None

    def touch(self, session: int, now_ms: int) -> bool:
        """The session was heard of; False if it has ended."""
        entry = self._sessions.get(session)
        if entry is None:
            return False
        end = self._round(now_ms + entry[0])
        if end > entry[1]:
            self._leave_bucket(session, entry[1])
            entry[1] = end
            self._buckets.setdefault(end, {})[session] = None
        return True

    def refresh(self, now_ms: int) -> None:
        """Count every session's time anew: nobody could have been heard."""
        for session in list(self._sessions):
            self.touch(session, now_ms)

    def close(self, session: int) -> None:
        """Stop counting; an unknown session is fine."""
        entry = self._sessions.pop(session, None)
        if entry is not None:
            self._leave_bucket(session, entry[1])

    def expired(self, now_ms: int) -> list[int]:
        """The sessions whose time is over, each handed out once, those that ended first first.

        They are forgotten here: a later touch says False.
        """
        ended: list[int] = []
        for end in sorted(end for end in self._buckets if end <= now_ms):
            ended.extend(self._buckets.pop(end))
        for session in ended:
            del self._sessions[session]
        return ended

    def timeout_of(self, session: int) -> int | None:
        """The session's time-out, or None if it has ended."""
        entry = self._sessions.get(session)
        return None if entry is None else entry[0]

    def clamp(self, timeout_ms: int) -> int:
        """The time-out that a session gets when its client asks for this one: 2 to 20 ticks."""
        return max(2 * self._tick_ms, min(20 * self._tick_ms, timeout_ms))

    def _round(self, time_ms: int) -> int:
        return (time_ms // self._tick_ms + 1) * self._tick_ms

    def _leave_bucket(self, session: int, end: int) -> None:
        bucket = self._buckets[end]
        del bucket[session]
        if not bucket:
            del self._buckets[end]
