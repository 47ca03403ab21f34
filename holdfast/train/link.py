"""The old place of a worker's connection to its agent; it answers until the next release."""

from holdfast.worker import AgentClient as Link

__all__ = ["Link"]
