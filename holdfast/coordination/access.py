"""Who may use a coordination plane: a secret in a file, and the access lists made from it.

    access = kept(folder / NAME)      # read, or made durably once; mode 0600
    access.acl("/holdfast/jobs")      # who may do what to this node

Whoever can read the file is let in, nobody else is. Every connection shows the secret before its
first request (ZooKeeper's scheme `digest`), and every node that our client makes is open to that
identity alone: on the embedded server, which closes `/` itself, and on an ensemble that others use.

A worker has a lesser secret, made from the first one. It opens the models, where workers publish,
and no job, node, service or election. A replica has another one as well, that of its service: with
it it reads what its service is to be and is called, and says of itself how it is. It changes
nothing else of it, and nothing of other services. The first secret can be computed from neither.

No secret is part of an address, an argument, an error or a log line.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from holdfast.coordination.address import Address, EmbeddedAddress, ZooKeeperAddress
from holdfast.system import disk
from holdfast.wire.errors import Corrupt, Refused
from holdfast.wire.names import (
    MODELS_PATH,
    PLAN_NAME,
    REPLICA_TURNS_NAME,
    REPLICAS_NAME,
    SERVICES_PATH,
)

NAME: Final = "access"  # of the file, in an embedded server's folder or in a cluster's
OWNER: Final = "holdfast"
WORKER: Final = "holdfast-worker"
SERVICE: Final = "holdfast-service"
READ, WRITE, CREATE, DELETE, ALL = 1, 2, 4, 8, 31
_USE: Final = READ | WRITE | CREATE | DELETE  # everything but changing the list itself
_OF_REPLICAS: Final = (REPLICAS_NAME, REPLICA_TURNS_NAME)
_FORMAT: Final = 1
_SECRET_BYTES: Final = 32
_USERS: Final = (OWNER, WORKER)


class AclEntry(NamedTuple):
    """One entry of an access list: ZooKeeper's numbers and names."""

    perms: int
    scheme: str
    id: str


@dataclass(frozen=True, slots=True)
class Access:
    """Who a session shows to be, and which identities a plane knows."""

    user: str
    secret: str = field(repr=False)
    owner: str  # the identity that may do everything
    worker: str  # the identity of workers
    # A worker's own certificate with its key, and whom to trust; PEM. Others make theirs.
    certificates: tuple[str, str] | None = field(default=None, repr=False)
    # Of a replica: its service, and the secret of that.
    service: str = ""
    service_secret: str = field(default="", repr=False)

    @property
    def credential(self) -> str:
        """What is shown to a server, as the scheme `digest` has it."""
        return f"{self.user}:{self.secret}"

    @property
    def credentials(self) -> tuple[str, ...]:
        """All that is shown: of a replica, also that it is one of its service."""
        of_service = (f"{SERVICE}:{self.service_secret}",) if self.service else ()
        return (self.credential, *of_service)

    @property
    def is_lesser(self) -> bool:
        """Whether it is a worker's."""
        return self.user == WORKER

    def acl(self, path: str) -> tuple[AclEntry, ...]:
        """The access list of the node at `path`, below the cluster's root."""
        every = (AclEntry(ALL, "digest", self.owner),)
        if path == MODELS_PATH or path.startswith(f"{MODELS_PATH}/"):
            return (*every, AclEntry(_USE, "digest", self.worker))
        if not path.startswith(f"{SERVICES_PATH}/"):
            return every
        service, _, below = path.removeprefix(f"{SERVICES_PATH}/").partition("/")
        replicas = self._replicas_of(service)
        name = below.partition("/")[0]
        if not replicas or name not in ("", PLAN_NAME, *_OF_REPLICAS):
            return every
        return (*every, AclEntry(_USE if name in _OF_REPLICAS else READ, "digest", replicas))

    def _replicas_of(self, service: str) -> str:
        """The identity of a service's replicas; empty: this one does not know it."""
        if not self.is_lesser:
            return digest_of(SERVICE, _service_secret(self.secret, service))
        return digest_of(SERVICE, self.service_secret) if service == self.service else ""

    def above(self) -> tuple[AclEntry, ...]:
        """The access list of nodes above the root, on an ensemble that others use too: they may
        have roots there, and cannot remove ours."""
        return (AclEntry(ALL, "digest", self.owner), AclEntry(READ | CREATE, "world", "anyone"))

    def for_workers(self) -> Access:
        """The lesser one, which workers get."""
        return Access(WORKER, _workers_secret(self.secret), self.owner, self.worker)

    def for_replicas(self, service: str) -> Access:
        """The one that replicas of this service get."""
        secret = _service_secret(self.secret, service)
        return replace(self.for_workers(), service=service, service_secret=secret)

    def document(self) -> bytes:
        """What is kept in the file."""
        fields: dict[str, object] = {"format": _FORMAT, "user": self.user}
        fields |= {"secret": self.secret, "owner": self.owner}
        if self.certificates is not None:
            fields["identity"], fields["trust"] = self.certificates
        if self.service:
            fields |= {"service": self.service, "service_secret": self.service_secret}
        return (json.dumps(fields) + "\n").encode()


def of(user: str, secret: str) -> Access:
    """The access of whoever owns a plane."""
    worker = digest_of(WORKER, _workers_secret(secret))
    return Access(user, secret, digest_of(user, secret), worker)


def read(path: Path) -> Access:
    """The access that is kept there. `Refused`: this user may not read it, or it is not there."""
    try:
        return parsed(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused(
            f"there is no secret of the coordination plane in {path}",
            why="whoever connects shows it",
            fix="holdfast up, where the cluster was made; elsewhere join again: holdfast join",
        ) from error
    except PermissionError as error:
        raise Refused(
            f"{path} cannot be read",
            why="the coordination plane lets in who can read it, and this user cannot",
            fix="run the command as the user who made the cluster",
        ) from error
    except (ValueError, KeyError, TypeError):
        # Without its cause: that would quote what is in the file.
        raise Corrupt(f"{path} is damaged", fix="restore it from a backup") from None


def parsed(document: bytes) -> Access:
    """What `document` has made. An error of values if it is something else."""
    fields = json.loads(document)
    user, secret, owner = (str(fields[key]) for key in ("user", "secret", "owner"))
    if fields["format"] != _FORMAT or user not in _USERS or not secret:
        raise ValueError
    worker = secret if user == WORKER else _workers_secret(secret)
    has_certificate = "identity" in fields
    shown = (str(fields["identity"]), str(fields["trust"])) if has_certificate else None
    service = str(fields.get("service", "")) if user == WORKER else ""
    of_service = str(fields["service_secret"]) if service else ""
    return Access(user, secret, owner, digest_of(WORKER, worker), shown, service, of_service)


def kept(path: Path) -> Access:
    """The access that is kept there, made if there is none. Of several who make it at once one
    does, and all have the same."""
    if not path.exists():
        keep(path, of(OWNER, secrets.token_hex(_SECRET_BYTES)))
    return read(path)


def kept_twice(path: Path, spare: Path) -> Access:
    """As `kept`, at `path`, with a copy at `spare`. The one makes good the loss of the other."""
    if not path.exists():
        if spare.exists():
            keep(path, read(spare))
        else:
            kept(path)
    found = read(path)
    if not spare.exists():
        keep(spare, found)
    return found


def keep(path: Path, access: Access, *, anew: bool = False) -> None:
    """Keep it there durably, for this user only. What is kept there already stays, unless it is
    another one and `anew` is said; then one takes the other's place, and none is ever missing."""
    if anew and path.exists() and path.read_bytes() == access.document():
        return
    if anew:
        disk.replace_durably(path, access.document())
        return
    try:
        disk.create_durably(path, access.document())
    except FileExistsError:
        disk.sync_folder(path.parent)  # whoever made it may have been killed before


def shown_to(address: Address, secret_file: Path | None = None) -> Access | None:
    """Who a session with that plane is: what the address says, else the file given, else the
    embedded server's own. None: nobody in particular."""
    if isinstance(address, ZooKeeperAddress) and address.user is not None:
        return of(address.user, address.password or "")
    named = address.secret_file or secret_file
    if named is not None:
        return read(named)
    if isinstance(address, EmbeddedAddress):
        # The server has made it, unless it is one of a version that did not.
        return kept(address.folder / NAME)
    return None


def digest_of(user: str, secret: str) -> str:
    """The identity of who shows this, as ZooKeeper names it."""
    shown = hashlib.sha1(f"{user}:{secret}".encode(), usedforsecurity=False).digest()
    return f"{user}:{base64.b64encode(shown).decode()}"


def _workers_secret(secret: str) -> str:
    return _derived(secret, "holdfast: the secret of workers")


def _service_secret(secret: str, service: str) -> str:
    return _derived(secret, f"holdfast: the secret of replicas of {service}")


def _derived(secret: str, purpose: str) -> str:
    return hmac.digest(secret.encode(), purpose.encode(), hashlib.sha256).hex()
