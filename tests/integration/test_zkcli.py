"""ZooKeeper's own command line, unchanged, sees the same from our server as from a real one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.conftest import require_service
from tests.servers import EmbeddedServer, ServerProcess, ZooKeeperServer, zookeeper_missing
from tests.servers.zookeeper import JARS, class_path

COMMANDS = """\
create /a hello
get -s /a
set /a world
set -v 7 /a never
ls /
create -s /a/s- x
create -e /e y
create /e/child z
create -c /c z
create -t 10000 /t z
ls -R /
stat /a
getAllChildrenNumber /
whoami
addauth digest user:password
whoami
setAcl /a auth:user:password:crdwa
getAcl -s /a
addWatch -m PERSISTENT_RECURSIVE /a
create /a/b q
set /a/b r
removewatches /a
create /a/c q
getEphemerals
sync /
listquota /a
deleteall /a
delete /nope
delete /
get /zookeeper/config
quit
"""


def _session(server: ServerProcess) -> tuple[list[str], list[str]]:
    jars = f"{class_path()}:{JARS / 'commons-cli.jar'}"
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    main = "org.apache.zookeeper.ZooKeeperMain"
    done = subprocess.run(
        ["java", quiet, "-cp", jars, main, "-server", server.hosts],
        input=COMMANDS,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + "--- errors ---\n" + done.stderr
    return _told(said.replace(server.hosts, "SERVER"))


def _told(said: str) -> tuple[list[str], list[str]]:
    """What it printed, and beside it the events that came: a thread of their own prints them, so
    they may stand between the lines of any command. That its own session is closed is the last one,
    which it prints or not: it does not wait for that thread when it ends."""
    said = re.sub(r"(?m)^([cm]time) = .*$", r"\1 = TIME", said)
    lines = [line for line in said.splitlines() if line.strip() and line != "WATCHER::"]
    events = [line for line in lines if line.startswith("WatchedEvent ")]
    there = [line for line in events if " state:Closed " not in line]
    return [line for line in lines if line not in events], there


def test_what_zkcli_says_of_its_own_end_or_does_not_say_makes_no_difference() -> None:
    came = "ctime = Mon\n\nWATCHER::\n\nWatchedEvent state:SyncConnected type:None path:null\n"
    closed = "\nWATCHER::\n\nWatchedEvent state:Closed type:None path:null\n"
    expected = ["ctime = TIME"], ["WatchedEvent state:SyncConnected type:None path:null"]
    for end in ("", "\nWATCHER::\n", closed):
        assert _told(came + end) == expected


def test_zkcli_prints_the_same_over_both(tmp_path: Path) -> None:
    require_service(zookeeper_missing())
    with EmbeddedServer(tmp_path / "ours") as ours, ZooKeeperServer(tmp_path / "real") as real:
        said, events = _session(ours)
        assert (said, events) == _session(real)
    assert "Created /a/s-0000000000" in said
    assert any("NodeCreated path:/a/b" in event for event in events)
