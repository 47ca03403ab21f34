"""How the parts of the server say no to a client."""

from __future__ import annotations

from holdfast.wire.errors import TerminalError


class OperationError(TerminalError):
    """An operation is refused; `code` is the protocol's, and goes into the reply.

    Never leaves this package: the server turns it into an answer.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the operation is refused with code {code}")
        self.code = code
