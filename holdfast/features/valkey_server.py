"""`python -m holdfast.features.valkey_server --cluster DIR`: the Valkey of a cluster's folder.

This process registers as the folder's server, writes the configuration, and becomes the server: so
the supervisor watches the server itself, and a signal reaches it. The server holds the lock of the
registration for as long as it lives, so there is never a second one over the same files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.features import hosting
from holdfast.supervise import records, wanted
from holdfast.supervise.records import Registration
from holdfast.system import disk, process
from holdfast.wire.errors import Cancelled, Full, HoldfastError

# Valkey ends itself when it cannot write: with less room than this it is not started, and waits.
FREE_BYTES_MIN: Final = 64 * 1024 * 1024
# Of the machine's memory; more is refused as `Full`. The file is rewritten by a copy of the
# process, which may need as much again.
MEMORY_PART: Final = 0.5
_CONFIGURATION: Final = "valkey.conf"
_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")

# Everything is durable before it is acknowledged; a tail that a crash has torn was not. Nothing is
# thrown away when memory is full. Paths are relative to the folder of the state.
_SETTINGS: Final = f"""\
port 0
unixsocket {hosting.SOCKET}
unixsocketperm 700
dir .
aclfile ../{hosting.ACCESS}/{hosting.USERS}
appendonly yes
appendfsync always
no-appendfsync-on-rewrite no
aof-load-truncated yes
save ""
maxmemory-policy noeviction
locale-collate C
daemonize no
logfile ""
"""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.features.valkey_server")
    parser.add_argument("--cluster", type=Path, required=True, help="the cluster's folder")
    folder: Path = parser.parse_args(arguments).cluster.absolute()
    try:
        _become_server(folder)
    except HoldfastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _become_server(folder: Path) -> None:
    """Does not return."""
    program = hosting.server_program()
    registration = _register(folder)
    try:
        path = _prepare(folder)
        os.umask(process.PRIVATE_MASK)
        process.raise_file_limit()
        os.chdir(folder / hosting.FOLDER)
        os.execv(program, [str(program), path])  # noqa: S606 (it is the server of a package)
    finally:
        registration.close()


def _prepare(folder: Path) -> str:
    """Make the folder of the state ready; the path of the configuration, relative to it."""
    state = folder / hosting.FOLDER
    state.mkdir(mode=0o700, exist_ok=True)
    free = shutil.disk_usage(state).free
    if free < FREE_BYTES_MIN:
        raise Full(
            f"there are {free:,} bytes free on the disk of {state}",
            why=f"a server of features is not started with less than {FREE_BYTES_MIN:,}",
            fix=f"make room: df {state}",
        )
    configuration = folder / hosting.ACCESS / _CONFIGURATION
    disk.draft(configuration, f"{_SETTINGS}maxmemory {_memory_bytes()}\n".encode())
    return os.path.relpath(configuration, state)


def _register(folder: Path) -> Registration:
    """Our record, and its lock: what we become has both."""
    disk.make_folder(records.run_folder(folder))
    supervised = bool(os.environ.pop(wanted.SUPERVISED_VARIABLE, ""))
    lock = records.taken(folder, hosting.KIND, hosting.NAME)
    # Without a lock it says who runs already.
    registration = records.register(folder, hosting.KIND, hosting.NAME, lock=lock)
    # Who does not want it any more first says so and then looks for records.
    if supervised and not wanted.is_wanted(folder, hosting.KIND, hosting.NAME):
        registration.close()
        raise Cancelled(f"the server of features of {folder} is not wanted any more")
    registration.note(address=str(hosting.address_in(folder).socket))
    assert lock is not None, "somebody else's would have been refused"
    os.set_inheritable(lock, True)
    return registration


def _memory_bytes() -> int:
    """What the rows may take, by the machine's memory or the limit of its container."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _LIMIT.read_text().strip()
    except OSError:
        limit = ""
    return int(MEMORY_PART * min(whole, int(limit) if limit.isdigit() else whole))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
