"""Times, sizes and counts as people say them: those of the client, whose errors say them too."""

from holdfast.client.texts import ago, clock, day, many, size, span

__all__ = ["ago", "clock", "day", "many", "size", "span"]
