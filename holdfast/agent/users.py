"""Workers of a queue that has a user of its own: who that is here, and what is handed over to it.

An agent that runs as root starts them as that user. Their folder stays root's: in it the user owns
what it writes (`tmp`, `work`, `code`), and can read what it needs; what agent and shim believe of a
worker it cannot change. All else of the cluster's folder the worker does not see, whatever modes
files have there: the place is covered in its mount namespace (`sandbox`).
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.agent import sandbox
from holdfast.agent.privacy import Privacy
from holdfast.coordination import launch
from holdfast.coordination.access import NAME as ACCESS_NAME
from holdfast.coordination.address import EmbeddedAddress, ZooKeeperAddress, parse, with_secret_file
from holdfast.topics import hosting
from holdfast.wire import worker_messages
from holdfast.wire.errors import Refused

CODE_NAME: Final = "code"
# What a worker writes, and what it is given to read.
_WRITES: Final = ("tmp", "var-tmp", "work", CODE_NAME)
_READS: Final = (
    worker_messages.SECRET_NAME,
    worker_messages.IDENTITY_NAME,
    worker_messages.TRUST_NAME,
    worker_messages.TOPICS_NAME,
    hosting.PASSWORD_NAME,
    hosting.TRUST_NAME,
    ACCESS_NAME,
)


class Account(NamedTuple):
    """A user of this machine."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str

    def environment(self) -> dict[str, str]:
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name}

    def ids(self) -> dict[str, Any]:
        """For a process that is to become this user."""
        return {"uid": self.uid, "gid": self.gid, "groups": list(self.groups)}


def account(name: str, queue: str, privacy: Privacy) -> Account:
    """The user of a queue, as this machine has it. `Refused`: it cannot start its workers."""
    whose = f"workers of queue {queue!r} run as user {name!r}"
    if os.geteuid() != 0:
        raise Refused(
            f"{whose}, and this agent cannot start them",
            why=f"it runs as user {os.geteuid()}, and only root can start programs of others",
            fix=f"run the agents as root, or: holdfast queue set {queue} --user ''",
        )
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        raise Refused(
            f"{whose}, and this machine has no such user",
            fix=f"useradd --system --create-home {name}, on every machine; "
            f"or: holdfast queue set {queue} --user ''",
        ) from None
    if found.pw_uid == 0:
        raise Refused(
            f"{whose}, and that is root",
            why="it could read everything",
            fix=f"holdfast queue set {queue} --user NAME, with another one",
        )
    if privacy.kind != sandbox.MOUNT:
        raise Refused(
            f"{whose}, and this machine cannot keep the cluster's folder from them",
            why=f"they would have no mounts of their own: {privacy.reason}",
            fix="allow mount namespaces, and start the agent without HOLDFAST_TMP=shared",
        )
    groups = tuple(os.getgrouplist(name, found.pw_gid))
    return Account(name, found.pw_uid, found.pw_gid, groups, found.pw_dir)


def copy_code(bundle: Path, folder: Path) -> Path:
    """The job's code where its user can read it, and write beside it: bundles are shared."""
    code, draft = folder / CODE_NAME, folder / f"{CODE_NAME}.{os.getpid()}.tmp"
    if not code.exists():
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(bundle, draft, symlinks=True)
        draft.rename(code)
    return code


def plane_for(coordination: str, folder: Path) -> str:
    """The coordination plane as this worker reaches it: with a copy of the workers' credential, and
    by the address of an embedded server, whose folder it cannot read."""
    address = parse(coordination) if coordination else None
    if address is None or address.secret_file is None:
        return coordination
    copy = write_access(folder, address.secret_file.read_bytes())
    if isinstance(address, ZooKeeperAddress):
        return with_secret_file(coordination, copy)
    assert isinstance(address, EmbeddedAddress)
    where = launch.find(address.folder)
    owner = (address.folder / "server.json").stat().st_uid if where else 0
    listens = where or "127.0.0.1:1"  # nobody answers there: then it waits, as for a server
    place = f"zk://{listens}?timeout_s={address.timeout_s:g}&owner={owner}"
    return with_secret_file(place, copy)


def write_access(folder: Path, document: bytes) -> Path:
    """A credential of the worker's own, in its folder."""
    path = folder / ACCESS_NAME
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(document)
    return path


def hand_over(folder: Path, user: Account) -> None:
    """Give the worker's folder to its user, as far as it is the user's."""
    for name in _WRITES:
        # Once: what is the user's already may hold whatever the user has put there.
        if (folder / name).is_dir() and (folder / name).stat().st_uid != user.uid:
            give_all(folder / name, user)
    (folder / worker_messages.WORD_NAME).touch(mode=0o600)
    for name in (*_READS, worker_messages.WORD_NAME, worker_messages.SOCKET_NAME):
        with suppress(FileNotFoundError):
            os.chown(folder / name, user.uid, user.gid, follow_symlinks=False)
    os.chown(folder, 0, user.gid)
    folder.chmod(0o750)  # it opens the folder, to reach the socket in it


def give_socket(folder: Path, socket: str) -> None:
    """Let the user of the worker in `folder` connect to a socket that was made there anew."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        user = json.loads((folder / "launch.json").read_bytes())["user"]
        os.chown(socket, int(user["uid"]), int(user["gid"]), follow_symlinks=False)


def covered(user: Account, needed: Iterable[str]) -> list[str]:
    """The folders that this user cannot pass on the way to what it needs, outermost ones: each is
    covered, and what is needed laid back into place."""
    found = set()
    for path in needed:
        real = Path(os.path.realpath(path))
        own = any(str(real).startswith(f"{place}/") for place in sandbox.SHARED)
        if own or not real.exists():
            continue
        closed = [above for above in reversed(real.parents) if not _may_pass(above, user)]
        if closed or (real.is_dir() and not _may_pass(real, user)):
            found.add(str(closed[0] if closed else real))
    return sorted(found)


def _may_pass(folder: Path, user: Account) -> bool:
    mode = folder.stat()
    if mode.st_uid == user.uid:
        return bool(mode.st_mode & 0o100)
    return bool(mode.st_mode & (0o010 if mode.st_gid in user.groups else 0o001))


def give_all(top: Path, user: Account) -> None:
    """Make a folder, and all that is in it, this user's."""
    for here, folders, files in os.walk(top):
        for name in (*folders, *files):
            os.chown(Path(here, name), user.uid, user.gid, follow_symlinks=False)
    os.chown(top, user.uid, user.gid, follow_symlinks=False)
