"""Secrets that jobs name and the cluster keeps: a value for each name, in the coordination plane,
below the root that is closed to workers and to whoever has no credential of the cluster.

A value goes from here into the order that starts a worker, and nowhere else: a spec, a history, a
log line and an agent's journal have names only.
"""

from __future__ import annotations

from typing import Any, Final

from holdfast.control.store import layout
from holdfast.coordination import Config, Facts, Session
from holdfast.wire.errors import Corrupt, Full, Missing, Usage

# A key or a certificate with its chain; a leader holds all of them in memory.
SECRET_BYTES_MAX: Final = 16 * 1024
SECRETS_MAX: Final = 1_000


class SecretStore:
    """What users do with secrets."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts = Facts(session)

    def names(self) -> list[str]:
        """All of them. Nobody is shown a value."""
        return sorted(self._facts.names(layout.SECRETS, fresh=True))

    def put(self, name: str, value: str) -> None:
        """Keep this value. Workers that run have the one before; those that start get this one."""
        path = layout.secret_path(layout.check_name("secret", name))
        size = len(value.encode())
        if not value or size > SECRET_BYTES_MAX or "\0" in value:
            raise Usage(
                f"the value of secret {name} cannot be kept",
                why=f"it has {size} bytes; a value has 1 to {SECRET_BYTES_MAX}, none of them zero",
                fix="keep large things in the store, and their password here",
            )
        known = self.names()
        if name not in known and len(known) >= SECRETS_MAX:
            raise Full(f"there are {SECRETS_MAX} secrets", fix="holdfast secret remove NAME")
        Config(self._session, path).put(value)

    def remove(self, name: str) -> None:
        """Forget it. Workers that have it go on; new ones of jobs that name it wait."""
        path = layout.secret_path(layout.check_name("secret", name))
        if self._facts.read(path, fresh=True) is None:
            raise Missing(f"there is no secret {name}", fix="holdfast secrets")
        gone = self._facts.transaction(lambda: self._facts.read(path, fresh=True) is None)
        gone.remove(path).commit()


def value_from(path: str, plain: Any) -> str:
    """What a node holds. The error does not say what it is."""
    if not isinstance(plain, str):
        raise Corrupt(f"{path} holds no secret", fix="holdfast secret set NAME")
    return plain
