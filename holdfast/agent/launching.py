"""Brings a worker into the world: its folder, its environment, its shim.

Warm where it can be (the zygote forks it), cold otherwise (its shim is executed, and executes the
command). Which of the two it was makes no difference to anybody afterwards.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast.agent import cgroups, log_topic, privacy, processes, shim, users
from holdfast.agent.environments import Environments, Making
from holdfast.agent.events import Event, Identity, Key, Slots, named_ports, serves
from holdfast.agent.folders import Folders
from holdfast.agent.keeper import Cold, Keeper
from holdfast.agent.ports import HeldProcess
from holdfast.agent.privacy import Keep, Privacy
from holdfast.agent.processes import LinuxProcesses, PidHandle
from holdfast.agent.requirements import lock_of
from holdfast.coordination.address import with_secret_file
from holdfast.system import logs
from holdfast.system.durable import write_file
from holdfast.system.job_certificates import equip
from holdfast.wire import worker_messages
from holdfast.wire.errors import Refused, RetryError
from holdfast.wire.limits import (
    AGENT_AWAY_NOTICE_S,
    AGENT_AWAY_S,
    AGENT_LOOK_S,
    REPLICA_AWAY_S,
    WORKER_PORTS,
)
from holdfast.wire.names import SERVICE_JOB
from holdfast.wire.orders import StartWorker
from holdfast.wire.probes import variable_of, with_ports

# A bundle that cannot be fetched now is tried again so often, as long as its worker is wanted.
BUNDLE_RETRY_S: Final = 2.0
# A worker's log is rotated at this size; it and the one before it are kept.
WORKER_LOG_BYTES_MAX: Final = 16 * 1024 * 1024

BundleFolder = Callable[[str], Path]
"""Gives the folder of an unpacked bundle; may block. `RetryError`: it may work later."""

ReplicaAccess = Callable[[str], bytes]
"""What a replica of a service shows to the coordination plane, as it is kept in a file."""

TopicsEnvironment = Callable[[Path], dict[str, str]]
"""What a worker with this folder is told of topics; its credentials are put into the folder."""

# How often a shim looks how much memory its worker holds, where no control group limits it. A look
# takes half a millisecond for twenty threads; between two of them a worker may touch a gigabyte.
MEMORY_LOOK_S: Final = 0.5
_NO_PRIVACY: Final = Privacy("")
_SHIM: Final = Path(shim.__file__)

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long workers go on without an agent (replicas: longer), and how much they may write."""

    away_s: float = AGENT_AWAY_S
    serving_away_s: float = REPLICA_AWAY_S
    away_notice_s: float = AGENT_AWAY_NOTICE_S
    log_bytes_max: int = WORKER_LOG_BYTES_MAX


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What every worker of this agent is told of where it is. `warm`: the zygote is wanted from
    the beginning, not only when a worker wants torch. `privacy`: how workers get a /tmp of their
    own."""

    host: str = "127.0.0.1"
    store: str = ""
    warm: bool = False
    region: str = ""
    coordination: str = ""
    privacy: Privacy = _NO_PRIVACY
    keep: tuple[str, ...] = ()  # folders that workers see though they lie in /tmp
    stores: tuple[str, ...] = ()  # those of them that all workers write to
    replica_access: ReplicaAccess | None = None
    topics: TopicsEnvironment | None = None


class WorkerCode(NamedTuple):
    """What a worker runs: its code, and the environment if it is not the agent's own."""

    bundle: Path | None = None
    venv: Path | None = None


class Launcher:
    """Prepares and starts workers for a supervisor. Used from its loop alone; events of what takes
    long go to `tell`."""

    def __init__(
        self,
        folders: Folders,
        groups: cgroups.Groups | None,
        bounds: Bounds,
        place: WorkerContext,
        bundle_folder: BundleFolder,
        tell: Callable[[Event], None],
    ) -> None:
        self._folders = folders
        self._groups = groups
        self._bounds = bounds
        self._place = place
        self._bundle_folder = bundle_folder
        self._keeper = Keeper(folders.home, bounds.away_s)
        self._environments = Environments(folders.environments, tell, folders.environments_in_use)
        self._processes = LinuxProcesses()

    @property
    def host(self) -> str:
        """Where workers of this machine listen."""
        return self._place.host

    def begin(self) -> None:
        if self._place.warm:
            self._keeper.begin()
        else:
            self._keeper.go_on()

    async def close(self) -> None:
        await self._environments.close()
        await self._keeper.close()

    # --- what a worker needs ---------------------------------------------------------------------

    async def gather(self, key: Key, order: StartWorker, slots: Slots) -> WorkerCode:
        """Its code and its environment. `CannotPrepare`: there is none for it."""
        bundle = await self._unpacked(order.bundle) if order.bundle else None
        if bundle is not None and (order.user or order.resources.disk_bytes):
            # What it writes beside its code is its own, and is counted.
            bundle = await asyncio.to_thread(users.copy_code, bundle, self._folders.worker(key))
        if not order.requirements:
            return WorkerCode(bundle)
        making = partial(self._making, key, order, slots, bundle)
        return WorkerCode(bundle, await self._environments.get(await asyncio.to_thread(making)))

    async def _unpacked(self, bundle: str) -> Path:
        while True:
            try:
                return await asyncio.to_thread(self._bundle_folder, bundle)
            except RetryError as error:
                log.warning("a bundle cannot be fetched now", bundle=bundle, reason=str(error))
                await asyncio.sleep(BUNDLE_RETRY_S)

    def taken(self, slots: Slots) -> tuple[int, ...]:
        """Those of the ports where the worker could not listen: a stranger does. May block."""
        return tuple(port for port in slots.ports if not _is_free(self._place.host, port))

    def _making(self, key: Key, order: StartWorker, slots: Slots, bundle: Path | None) -> Making:
        """How the environment of its job is made, if it is not there. May block."""
        _check_secrets(order)
        environment = self._environment(key, order, slots)
        logged = self._folders.log(key) / "out.log"
        lock = lock_of(order, bundle)
        if not order.user:
            return Making(key, lock, environment, bundle, logged)
        user = users.account(order.user, order.queue, self._place.privacy)
        # Nothing of it is left in that user's home, which may not be there at all.
        environment |= {**user.environment(), "PIP_NO_CACHE_DIR": "1"}

        def owner(draft: Path) -> dict[str, Any]:
            """What pip sees as that user: its folder, in which the environment is as its own."""
            places = self._own_places(draft, order, environment, user, own=(draft / "env",))
            for name in ("source", "tmp", "var-tmp"):
                users.give_all(draft / name, user)
            return {"places": places, "user": user.ids()}

        return Making(key, lock, environment, bundle, logged, owner)

    async def prepare(
        self, key: Key, order: StartWorker, slots: Slots, gathered: WorkerCode
    ) -> bool:
        """Make the worker's folder; whether it is to be warm: the zygote is waited for, within its
        bound."""
        return self.lay_out(key, order, slots, gathered) and await self._is_warm(key)

    def lay_out(self, key: Key, order: StartWorker, slots: Slots, gathered: WorkerCode) -> bool:
        """Make the worker's folder; whether the zygote can start it."""
        bundle, venv = gathered
        _check_secrets(order)
        command = with_ports(order.command, named_ports(order, slots))
        order = replace(order, command=command)
        folder = self._folders.worker(key)
        for path in (folder, folder / "tmp", folder / "work", self._folders.log(key)):
            path.mkdir(mode=0o700, exist_ok=True)
        if order.secret:
            equip(folder, order.secret)
        user = None
        if order.user:
            user = users.account(order.user, order.queue, self._place.privacy)
        cwd = bundle or folder / "work"
        environment = self._environment(key, order, slots)
        plane = self._plane(key, order, folder)
        if venv is not None:
            environment["PATH"] = f"{venv / 'bin'}{os.pathsep}{environment['PATH']}"
            environment["VIRTUAL_ENV"] = str(venv)
        if user is not None:
            own = user.environment()  # unless the job itself says otherwise
            environment |= {name: own[name] for name in own.keys() - order.environment.keys()}
            plane = users.plane_for(plane, folder)
        environment[worker_messages.COORDINATION_VARIABLE] = plane
        if self._place.topics is not None:
            found = self._place.topics(folder)  # unless the job itself says otherwise
            environment |= {name: found[name] for name in found.keys() - order.environment.keys()}
        if order.environment.get(worker_messages.LOG_TOPIC_VARIABLE):
            (self._folders.log(key) / log_topic.MARK).touch()
        program = program_of(order.command, order.environment, environment["PATH"], cwd)
        launch = self._launch_file(key, order, slots, cwd)
        if venv is not None:
            program = None  # the zygote has imported from elsewhere
        launch |= {"environment": environment, "program": program and program.fields()}
        launch["venv"] = str(venv or "")
        if user is None:
            launch["tmp"] = self._own_tmp(folder, cwd, order, environment)
        else:
            needed = [str(venv)] if venv is not None else []
            launch["tmp"] = self._own_places(folder, order, environment, user, needed)
            launch["user"] = user.ids()
            users.hand_over(folder, user)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            write_file(handle, "launch.json", json.dumps(launch).encode())
        finally:
            os.close(handle)
        if program is None or user is not None:
            return False  # the zygote is root's: what it forks has its memory
        if serves(order):
            # It does not wait for the zygote. Whoever comes in its place will find it warm.
            self._keeper.begin()
            return self._keeper.is_ready
        return self._keeper.is_ready or wants_torch(program, order.environment, cwd)

    async def _is_warm(self, key: Key) -> bool:
        try:
            await self._keeper.ready()
        except Cold as reason:
            log.warning("a worker is started cold", worker=str(key), reason=str(reason))
            return False
        return True

    async def start(self, key: Key, *, warm: bool) -> tuple[Identity, HeldProcess | None]:
        """Start what was prepared. It may have been started before: its claim decides."""
        folder = self._folders.worker(key)
        if warm:
            try:
                identity = await self._keeper.fork(folder)
                return identity, self._processes.hold(identity)
            except Cold as reason:
                log.warning("a worker is started cold", worker=str(key), reason=str(reason))
        child = _execute(folder)
        # A child that has ended stays in the process table until it is waited for.
        identity = processes.identify(child.pid) or Identity(child.pid, 0, "")
        return identity, PidHandle(identity, os.pidfd_open(child.pid), child)

    # --- tidying up ------------------------------------------------------------------------------

    async def remove(self, key: Key) -> None:
        """Remove its control group and its folder."""
        group = self._folders.launch(key).get("cgroup")
        if group:
            cgroups.remove(Path(group))
        await asyncio.to_thread(self._folders.remove_worker, key)

    async def tidy(self, gone: Key | None = None) -> None:
        """Remove environments that nobody needs."""
        if gone is not None:
            self._environments.forget(gone)
        await self._environments.tidy()

    # --- private ---------------------------------------------------------------------------------

    def _launch_file(self, key: Key, order: StartWorker, slots: Slots, cwd: Path) -> dict[str, Any]:
        group = self._groups.make(key, order.resources) if self._groups else None
        bounds, logs_folder = self._bounds, self._folders.log(key)
        return {
            "command": list(order.command),
            "cwd": str(cwd),
            "out": str(logs_folder / "out.log"),
            "err": str(logs_folder / "err.log"),
            "log_bytes_max": bounds.log_bytes_max,
            "memory_bytes_max": order.resources.memory_bytes,
            "memory_look_s": MEMORY_LOOK_S,
            "cgroup": str(group or ""),
            "cpus": list(slots.cpus),
            "agent": str(self._folders.agent),
            "look_s": AGENT_LOOK_S,
            "away_s": bounds.serving_away_s if serves(order) else bounds.away_s,
            "away_notice_s": bounds.away_notice_s,
        }

    def _own_tmp(
        self, folder: Path, cwd: Path, order: StartWorker, environment: Mapping[str, str]
    ) -> dict[str, Any] | None:
        """How the worker gets a /tmp of its own; None: it does not."""
        if order.environment.get(privacy.TMP_VARIABLE) == privacy.SHARED:
            return None
        folders = (str(self._folders.home), str(cwd), *self._place.keep)
        python = environment.get("PYTHONPATH", "")
        words = (*order.command, *order.environment.values(), *python.split(os.pathsep))
        return privacy.plan(self._place.privacy, folder, Keep(folders, words))

    def _plane(self, key: Key, order: StartWorker, folder: Path) -> str:
        """The coordination plane as this worker reaches it: a replica as one of its service."""
        plane, access = self._place.coordination, self._place.replica_access
        if access is None or not serves(order) or not key.job.startswith(SERVICE_JOB):
            return plane
        document = access(key.job.removeprefix(SERVICE_JOB))
        return with_secret_file(plane, users.write_access(folder, document))

    def _own_places(
        self,
        folder: Path,
        order: StartWorker,
        environment: Mapping[str, str],
        user: users.Account,
        more: Sequence[str] = (),
        own: Sequence[Path] = (),
    ) -> dict[str, Any]:
        """The same for a worker with a user of its own: of what is root's it sees what it needs.
        `more`: that is needed too. `own`: in place of the stores, what is to be as its own."""
        python = [one for one in environment.get("PYTHONPATH", "").split(os.pathsep) if one]
        # Not `serving/`: what replicas of other queues load from there would be theirs to change.
        shared = own or [Path(one) for one in self._place.stores]
        for path in shared:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mapped = [os.path.realpath(path) for path in shared]
        words = (*order.command, *order.environment.values(), *python)
        plan = privacy.plan(self._place.privacy, folder, Keep((), words))
        if plan is None:
            raise Refused(
                f"workers of queue {order.queue!r} cannot have a /tmp of their own here",
                why="what they need is /tmp itself",
                fix="keep the cluster's folder and the environment of Python elsewhere",
            )
        needed = [str(folder), *privacy.python_places(), *python, *more]
        cover = users.covered(user, (*needed, *mapped))
        plan["keep"] = sorted({*plan["keep"], *needed})
        return {**plan, "cover": cover, "mapped": mapped, "ids": [user.uid, user.gid]}

    def _environment(self, key: Key, order: StartWorker, slots: Slots) -> dict[str, str]:
        """The agent's environment without its own settings, the order's, then what is certain."""
        ours = {name: text for name, text in os.environ.items() if not name.startswith("HOLDFAST_")}
        beside = str(Path(sys.executable).parent)
        ours["PATH"] = f"{beside}{os.pathsep}{ours.get('PATH', os.defpath)}"
        ours["PYTHONUNBUFFERED"] = "1"
        if slots.cpus:
            ours["OMP_NUM_THREADS"] = str(len(slots.cpus))
        folder = self._folders.worker(key)
        named = named_ports(order, slots)
        return {
            **ours,
            **order.environment,
            **order.secrets,
            **{variable_of(name): str(number) for name, number in named.items()},
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(set(slots.gpus)))),
            worker_messages.JOB_VARIABLE: key.job,
            worker_messages.WORKER_VARIABLE: str(key.worker),
            worker_messages.PORTS_VARIABLE: ",".join(map(str, slots.ports[:WORKER_PORTS])),
            worker_messages.HOST_VARIABLE: self._place.host,
            worker_messages.STORE_VARIABLE: self._place.store,
            worker_messages.REGION_VARIABLE: self._place.region,
            worker_messages.BUNDLE_VARIABLE: order.bundle,
            "TMPDIR": str(folder / "tmp"),
            processes.MARK: str(folder),
        }


def _check_secrets(order: StartWorker) -> None:
    unknown = sorted(order.references.keys() - order.secrets.keys())
    if unknown:
        raise Refused(
            f"the agent was started again before this worker was, and does not know"
            f" {', '.join(unknown)} any more",
            why="secrets are kept in no journal",
            fix="nothing: another worker is started in its place",
        )


def _execute(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "shim.log").open("ab") as words:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SHIM), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            cwd="/",
            start_new_session=True,
        )


def _is_free(host: str, port: int) -> bool:
    """Whether one can listen there, as a worker will."""
    for family, kind, proto, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[:1]:
        with socket.socket(family, kind, proto) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(address)
                listener.listen(1)
            except OSError as error:
                # Whatever else is wrong with the address, the worker itself says best.
                if error.errno == errno.EADDRINUSE:
                    return False
    return True


# --- programs -------------------------------------------------------------------------------------
# Which commands a zygote can run as `python` would: a script or a module, nothing unusual.
#
# Everything else, and whatever is in doubt, is executed: slower, and always right.


# How much of a script is searched for its imports.
SCRIPT_LOOK_BYTES: Final = 256 * 1024

# What is read when Python, a library of torch or the C library is loaded: too late for a fork.
_READ_AT_START: Final = re.compile(
    r"PYTHON(?!PATH$).*|LD_.*|MALLOC_.*|GLIBC_.*|GCONV_PATH|LOCPATH|LANG|LC_.*"
    r"|OMP_(?!NUM_THREADS$).*|GOMP_.*|KMP_.*|MKL_.*|OPENBLAS_.*|BLIS_.*|VECLIB_.*"
    r"|TORCH.*|PYTORCH.*|NPY_.*|NUMPY_.*|ATEN_.*|DNNL_.*|ONEDNN_.*"
)
_IMPORTS_TORCH: Final = re.compile(rb"^[ \t]*(?:import|from)[ \t]+torch\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """`python SCRIPT ...` or `python -m MODULE ...`. One of `script` and `module` is empty."""

    script: str  # its absolute path
    module: str
    arguments: tuple[str, ...]  # as `sys.argv` has them, the first one included

    def fields(self) -> dict[str, Any]:
        """For launch.json."""
        arguments = list(self.arguments)
        return {"script": self.script, "module": self.module, "arguments": arguments}


def program_of(
    command: Sequence[str], wanted: Mapping[str, str], path: str, cwd: Path
) -> Program | None:
    """The program that `command` runs with this interpreter, if it can be forked.

    `wanted` is what the job wants in its environment, `path` the worker's PATH.
    """
    if wanted.get(worker_messages.WARM_VARIABLE) == "0" or any(
        map(_READ_AT_START.fullmatch, wanted)
    ):
        return None
    if not _is_ours(command[0], path, cwd):
        return None
    words = list(command[1:])
    if words[:1] == ["-u"]:  # workers are never buffered
        del words[0]
    if not words:
        return None
    if words[0] == "-m" and len(words) > 1 and not words[1].startswith("-"):
        return Program("", words[1], ("-m", *words[2:]))
    script = cwd / words[0]
    if words[0].startswith("-") or not script.is_file():
        return None
    return Program(os.path.normpath(script), "", tuple(words))


def wants_torch(program: Program, wanted: Mapping[str, str], cwd: Path) -> bool:
    """Whether it is worth to wait for a zygote: its own code imports torch, or the job says so."""
    if wanted.get(worker_messages.WARM_VARIABLE) == "1":
        return True
    path = Path(program.script) if program.script else cwd / _file_of(program.module)
    try:
        with path.open("rb") as file:
            return bool(_IMPORTS_TORCH.search(file.read(SCRIPT_LOOK_BYTES)))
    except OSError:
        return False


def _file_of(module: str) -> Path:
    return Path(*module.split(".")).with_suffix(".py")


def _is_ours(name: str, path: str, cwd: Path) -> bool:
    """Whether this command is the interpreter that runs the agent, and so the zygote."""
    found = shutil.which(name, path=path) if os.sep not in name else str(cwd / name)
    if found is None:
        return False
    # By its folder too: the interpreters of two virtual environments are one file.
    ours = Path(sys.executable)
    try:
        return Path(found).absolute().parent.samefile(ours.parent) and ours.samefile(found)
    except OSError:
        return False
