"""The folder of a cluster on one machine, and the value that stands in its `cluster.json`.

    cluster.json      name, addresses
    access            the secret of an ensemble's plane; of an embedded server: in its own folder
    coordination/     the embedded server's state, where there is one
    store/            blobs, where the store is a folder
    authority/        who lets machines in, with the secret of an ensemble's plane; only where the
                      cluster was made
    standby/          the same, lent to a machine whose coordinator may lead too
    credentials/NODE/ of a node: its certificate and its token
    nodes/NODE/       an agent's own folder
    bundles/          unpacked code, shared by the agents here
    logs/  run/       of each process that was started here

Addresses that name a folder are written relative to it, so the whole may be moved.
"""

from __future__ import annotations

import json
import os
import pwd
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from holdfast.coordination import Session, access, connect
from holdfast.coordination.access import Access
from holdfast.coordination.address import (
    SECRET,
    EmbeddedAddress,
    ZooKeeperAddress,
    with_secret_file,
)
from holdfast.coordination.address import parse as parse_coordination
from holdfast.storage import Blobs, open_store
from holdfast.storage.address import FolderAddress
from holdfast.storage.address import parse as parse_store
from holdfast.system import disk
from holdfast.system.certificates import Authority
from holdfast.wire.errors import Corrupt, Missing, Occupied, Refused, Usage
from holdfast.wire.limits import CONNECT_TIMEOUT_S, OPERATION_TIMEOUT_S
from holdfast.wire.names import checked_name

CLUSTER_VARIABLE: Final = "HOLDFAST_CLUSTER"
FOLDER_NAME: Final = ".holdfast"
CREDENTIALS_NAME: Final = "credentials"
LOOPBACK: Final = "127.0.0.1"
_FILE: Final = "cluster.json"
# 2: since znodes and folders have the names that they keep (`cluster.migration`).
_FORMAT: Final = 2
_FORMATS_OLDER: Final = (1,)
_KEYS: Final = ("coordination", "format", "listen", "name", "store")
_EMBEDDED: Final = "embedded:"
_STORE_FOLDER: Final = "file:"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, as a machine knows it. `listen`: where processes of this machine listen, and where
    others reach them; a loopback address keeps everything on this machine."""

    folder: Path
    name: str
    coordination: str
    store: str
    listen: str = LOOPBACK

    def session(
        self,
        *,
        timeout_s: float = CONNECT_TIMEOUT_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> Session:
        """A session with its coordination plane; the caller closes it."""
        return connect(
            self.coordination_here, timeout_s=timeout_s, operation_timeout_s=operation_timeout_s
        )

    @property
    def access_file(self) -> Path:
        """Where the secret of its coordination plane is, for whoever may read this folder."""
        embedded = self.embedded
        return (self.folder if embedded is None else embedded.folder) / access.NAME

    def access(self) -> Access | None:
        """Who its processes are in the coordination plane. Made where the cluster was, once; None:
        this machine was let in before there was a secret, or the address names a user."""
        plane, file = parse_coordination(self.coordination), self.access_file
        if isinstance(plane, ZooKeeperAddress) and plane.user is not None:
            return access.shown_to(plane)
        if self.is_home and self.embedded is None:
            # An ensemble keeps nothing of it. Whoever copies the authority has it too: with a new
            # one he would be a stranger to his own cluster.
            return access.kept_twice(file, self.authority_folder / access.NAME)
        if self.is_home and not file.exists():
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return access.kept(file)
        return access.read(file) if file.exists() else None

    @property
    def coordination_here(self) -> str:
        """The coordination plane, with who we are there. It may be printed: no secret is in it."""
        plane = parse_coordination(self.coordination)
        if isinstance(plane, EmbeddedAddress) or plane.user or plane.secret_file:
            return self.coordination
        if self.access() is None:
            return self.coordination
        return with_secret_file(self.coordination, self.access_file)

    def blobs(self) -> Blobs:
        return open_store(self.store)

    @property
    def embedded(self) -> EmbeddedAddress | None:
        """Its embedded coordination server, if it has one."""
        found = parse_coordination(self.coordination)
        return found if isinstance(found, EmbeddedAddress) else None

    @property
    def coordination_for_others(self) -> str:
        """The coordination plane as another folder or machine reaches it."""
        embedded = self.embedded
        if embedded is None:
            return self.coordination
        if embedded.listen == EmbeddedAddress.listen:
            return self.coordination  # others are on this machine too
        tls = f"&verify={SECRET}" if embedded.encrypts else ""
        return f"zk://{embedded.listen}?timeout_s={embedded.timeout_s:g}{tls}"

    @property
    def store_is_local(self) -> bool:
        """Whether the store is a folder: others have to see it at the same path."""
        return isinstance(parse_store(self.store), FolderAddress)

    @property
    def is_home(self) -> bool:
        """Whether it was made here: this folder can let machines in."""
        return (self.authority_folder / "authority.key").exists()

    @property
    def has_authority(self) -> bool:
        """Whether this folder can let machines in: it was made here, or the authority was lent."""
        return self.is_home or (self.lent_folder / "authority.key").exists()

    def authority(self) -> Authority:
        """Who lets machines in; `Missing` on a machine that has only joined."""
        return Authority.open(self.authority_folder if self.is_home else self.lent_folder)

    @property
    def authority_folder(self) -> Path:
        return self.folder / "authority"

    @property
    def lent_folder(self) -> Path:
        """Where a machine that stands by has the authority."""
        return self.folder / "standby"

    @property
    def bundles_folder(self) -> Path:
        return self.folder / "bundles"

    @property
    def logs_folder(self) -> Path:
        return self.folder / "logs"

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    @property
    def nodes_folder(self) -> Path:
        return self.folder / "nodes"

    @property
    def credentials_folder(self) -> Path:
        """With a folder for each node of this machine."""
        return self.folder / CREDENTIALS_NAME

    def node_credentials_folder(self, node: str) -> Path:
        return self.credentials_folder / node

    def node_folder(self, node: str) -> Path:
        return self.nodes_folder / node


def described(
    folder: Path,
    *,
    name: str = "local",
    coordination: str = "",
    store: str = "",
    listen: str = LOOPBACK,
) -> Cluster:
    """The cluster that `create` would make. Nothing is written; a wrong address is an error now,
    and not when the first process needs it."""
    made = Cluster(
        folder.absolute(),
        checked_name("cluster", name),
        _within(folder.absolute(), _EMBEDDED, coordination or "embedded:coordination"),
        _within(folder.absolute(), _STORE_FOLDER, _kept_store(store)),
        listen,
    )
    parse_coordination(made.coordination)
    parse_store(made.store)
    return made


def create(folder: Path, **given: str) -> Cluster:
    """A new cluster's folder. `Occupied`: there is one already, and it stays.

    Takes what `described` takes. Without addresses it gets an embedded server and a store in its
    own folder.
    """
    made = described(folder, **given)
    _check_owner(made.folder)
    for part in (made.folder, made.run_folder, made.logs_folder, made.nodes_folder):
        disk.make_folder(part, 0o700)
        part.chmod(0o700)  # it may have been there before
    # It may lie within a project: it is no part of its code.
    disk.draft(made.folder / ".gitignore", b"*\n")
    text = json.dumps(_fields(made), indent=2) + "\n"
    try:
        disk.create_durably(made.folder / _FILE, text.encode())
    except FileExistsError as error:
        raise occupied(made.folder) from error
    return made


def readdressed(cluster: Cluster, coordination: str) -> Cluster:
    """The same cluster, with its coordination plane at that address from now on: for a machine that
    is told another one when it joins again."""
    if coordination == cluster.coordination:
        return cluster
    parse_coordination(coordination)
    made = replace(cluster, coordination=coordination)
    text = json.dumps(_fields(made), indent=2) + "\n"
    disk.replace_durably(made.folder / _FILE, text.encode())
    return made


def tighten(cluster: Cluster) -> int:
    """Take from other users what a cluster of an older version let them read, once: its folder, and
    its store if that is a folder of ours. How many files and folders they were."""
    file, store, loose = cluster.folder / _FILE, parse_store(cluster.store), 0
    if not file.stat().st_mode & 0o077 and not cluster.folder.stat().st_mode & 0o077:
        return 0
    # The file that says whether it was done is the last; `disk.tighten` ends with the folder.
    places = [path for path in cluster.folder.iterdir() if path.is_dir()]
    if isinstance(store, FolderAddress) and store.folder.is_dir():
        places.append(store.folder)
    for place in places:
        loose += disk.tighten(place)
    return loose + disk.tighten(cluster.folder)


def occupied(folder: Path) -> Occupied:
    return Occupied(
        f"{folder} is a cluster's folder already",
        why="a cluster's addresses do not change",
        fix=f"use it: holdfast up --cluster {folder}, or choose another folder",
    )


def opened(folder: Path, *, of_older: bool = False) -> Cluster:
    """The cluster of that folder; `Missing` if it is none. `Refused`: it is of an earlier version,
    and was not migrated yet; `of_older`: that one, too."""
    folder = folder.expanduser().absolute()
    path = folder / _FILE
    _check_owner(folder)
    try:
        fields = json.loads(path.read_text())
        if not isinstance(fields, dict) or not set(fields) >= set(_KEYS):
            raise ValueError(f"one of its keys is missing: {', '.join(_KEYS)}")  # noqa: TRY301
        if fields["format"] in _FORMATS_OLDER:
            if not of_older:
                raise _not_migrated(folder)
        elif fields["format"] != _FORMAT:
            raise ValueError(f"its format is {fields['format']!r}, not {_FORMAT}")  # noqa: TRY301
        return _cluster(folder, fields)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Missing(
            f"{folder} is not the folder of a cluster",
            why=f"{path} is not there",
            fix=f"holdfast up --cluster {folder}",
        ) from error
    except ValueError as error:
        raise Corrupt(
            f"{path} cannot be read", why=str(error), fix="restore it from a backup"
        ) from error


def is_cluster(folder: Path) -> bool:
    """Whether a cluster's folder is there."""
    return (folder / _FILE).exists()


def _check_owner(folder: Path) -> None:
    """What a folder says is wanted is started, with our rights: so it must be ours, or root's."""
    try:
        owner = folder.stat().st_uid
    except OSError:
        return  # it is not there, or nobody may look: whoever reads it says so
    if owner in (0, os.geteuid()):
        return
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    raise Refused(
        f"{folder} belongs to another user, {name}",
        why="whoever can write to a cluster's folder decides which programs run, with your rights",
        fix=f"run it as {name}, or choose another folder: --cluster FOLDER",
    )


def _not_migrated(folder: Path) -> Refused:
    return Refused(
        f"{folder} is the cluster of an earlier version, and was not migrated yet",
        why="znodes and folders have other names since; they are moved once, with the cluster down",
        fix=f"holdfast migrate --cluster {folder}",
    )


def is_of_older(cluster: Cluster) -> bool:
    """Whether its folder was not migrated yet."""
    fields = json.loads((cluster.folder / _FILE).read_text())
    return fields.get("format") in _FORMATS_OLDER


def mark_migrated(cluster: Cluster) -> None:
    """Its folder is as this version has it: the last step of a migration."""
    text = json.dumps(_fields(cluster), indent=2) + "\n"
    disk.replace_durably(cluster.folder / _FILE, text.encode())


def find(folder: Path | None = None, *, of_older: bool = False) -> Cluster:
    """The cluster that is meant: the folder given, else HOLDFAST_CLUSTER, else `.holdfast` here or
    above, else `~/.holdfast`. `Missing`, with the command that makes one, if there is none.
    `of_older` as for `opened`."""
    named = folder or _from_variable()
    if named is not None:
        return opened(named, of_older=of_older)
    for place in _usual_places():
        if is_cluster(place):
            return opened(place, of_older=of_older)
    raise Missing(
        "there is no cluster here",
        why=f"no {FOLDER_NAME} in this folder or above it, nor in your home",
        fix="holdfast up",
    )


def default_folder(folder: Path | None = None) -> Path:
    """Where `find` finds the cluster, or where a new one would be made: in the project that we are
    in, where `holdfast run` makes its own, or in our home where nothing can be written here."""
    named = folder or _from_variable()
    if named is not None:
        return named.expanduser().absolute()
    for place in _usual_places():
        if is_cluster(place):
            return place
    here = project_of(Path.cwd())
    return (here if os.access(here, os.W_OK) else Path.home()) / FOLDER_NAME


def project_of(place: Path) -> Path:
    """The top of the git checkout that a folder is in, or the folder itself."""
    tops = (each for each in (place, *place.parents) if (each / ".git").exists())
    return next(tops, place)


def _fields(cluster: Cluster) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "name": cluster.name,
        "coordination": _without(cluster.folder, _EMBEDDED, cluster.coordination),
        "store": _without(cluster.folder, _STORE_FOLDER, cluster.store),
        "listen": cluster.listen,
    }


def _from_variable() -> Path | None:
    text = os.environ.get(CLUSTER_VARIABLE)
    return Path(text) if text else None


def _usual_places() -> list[Path]:
    here = Path.cwd()
    return [place / FOLDER_NAME for place in (here, *here.parents, Path.home())]


def _cluster(folder: Path, fields: dict[str, Any]) -> Cluster:
    coordination, store = str(fields["coordination"]), str(fields["store"])
    return Cluster(
        folder,
        str(fields["name"]),
        _within(folder, _EMBEDDED, coordination),
        _within(folder, _STORE_FOLDER, store),
        str(fields["listen"]),
    )


def _within(folder: Path, scheme: str, address: str) -> str:
    """An address whose folder is relative is meant within the cluster's folder."""
    if not address.startswith(scheme):
        return address
    where = address.removeprefix(scheme)
    return f"{scheme}{folder / where}" if where else address


def _without(folder: Path, scheme: str, address: str) -> str:
    """The reverse: what lies within the cluster's folder is written relative to it."""
    inside = f"{scheme}{folder}/"
    return f"{scheme}{address.removeprefix(inside)}" if address.startswith(inside) else address


def _kept_store(store: str) -> str:
    if not store:
        return "file:store"
    parsed = parse_store(store)
    if isinstance(parsed, FolderAddress):
        return str(parsed)  # as it was meant where the command was given
    if store.startswith("memory:"):
        raise Usage(
            "a cluster's store cannot be in memory",
            why="its processes would each have a store of their own",
            fix="leave --store out, or give file:DIR or s3://BUCKET/PREFIX",
        )
    return store
