"""The hand of the chaos run: what its script says happens to real processes and real disks.

Disks are filled where the machine and the user allow it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from holdfast.cluster import create
from holdfast.cluster.registry import identified, write_record
from holdfast.coordination import Membership, connect
from holdfast.storage import open_store
from holdfast.system.process_identity import start_ticks
from holdfast.wire.errors import RetryError
from tests.conftest import require_service
from tests.proofs.chaos import disks, network
from tests.proofs.chaos.cast import ALONE, DIRECTOR, STORE
from tests.proofs.chaos.disks import BALLAST, Disks
from tests.proofs.chaos.hand import Hand
from tests.proofs.chaos.loopback import Loopback
from tests.proofs.chaos.network import end
from tests.proofs.chaos.processes import HostProcesses
from tests.proofs.chaos.script import Act, Chaos
from tests.servers.s3 import rclone_missing
from tests.waiting import eventually

NO_DISKS = disks.missing()
SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
CAST = replace(ALONE, store=STORE)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[HostProcesses]:
    """Nothing runs there but what a test starts."""
    net, small = Loopback(CAST.hosts), Disks()
    made = HostProcesses(tmp_path, net, small, CAST, rate=1.0)
    try:
        yield made
    finally:
        made.end_at_once()
        network.end_marked(made.run)
        small.close()
        net.close()


@pytest.fixture
def hand(processes: HostProcesses) -> Hand:
    return Hand(processes, lambda _act: False)


@pytest.fixture
def envoys(processes: HostProcesses) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What gateways have written down as their Envoys: real processes, and patient ones."""
    made = []
    for host in CAST.gateways:
        cluster = create(processes.folder / "hosts" / host)
        child = subprocess.Popen(SLEEP)
        made.append(child)
        process = identified("envoy", f"{host}.envoy", child.pid)
        assert process is not None
        write_record(cluster, process)
    yield made
    for child in made:
        child.kill()
        child.wait()


def act(chaos: Chaos) -> Act:
    (found,) = chaos
    return found


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_an_envoy_that_is_killed_is_gone_and_the_strike_is_written_down(
    processes: HostProcesses, hand: Hand, envoys: list[subprocess.Popen[bytes]]
) -> None:
    chaos, began_s = Chaos(), time.time()
    chaos.kill(envoy=2)
    assert hand.do(act(chaos)) == ["g2.envoy"]
    # It has ended already: a request that is answered later was answered by another one.
    assert envoys[1].poll() == -signal.SIGKILL
    assert envoys[0].poll() is None
    (strike,) = processes.strikes
    assert strike.gateway == "g2"
    assert began_s <= strike.from_s <= strike.to_s <= time.time()
    assert hand.tally["kills of envoy"] == 1
    assert hand.do(act(chaos)) == [], "there is none any more"


def test_an_envoy_that_is_paused_stands_still_until_its_time_is_over(
    processes: HostProcesses, hand: Hand, envoys: list[subprocess.Popen[bytes]]
) -> None:
    chaos = Chaos()
    chaos.pause(envoy=1).for_(600)
    assert hand.do(act(chaos)) == ["g1.envoy for 600 s"]
    eventually(lambda: stopped(envoys[0].pid), "it stands still")
    hand.turn()
    assert stopped(envoys[0].pid)
    (strike,) = processes.strikes
    assert strike.to_s > time.time(), "it is not over"
    hand.peace()
    eventually(lambda: not stopped(envoys[0].pid), "it goes on")
    assert strike.to_s <= time.time()


def test_a_cut_between_the_client_and_a_gateway_is_a_strike_and_others_are_not(
    processes: HostProcesses, hand: Hand
) -> None:
    processes.network.plane("client", [("g1", 1)])  # a relay that can be cut
    processes.network.plane("g2", [("plane", 1)])
    chaos = Chaos()
    chaos.cut("client", "g1")
    chaos.cut("g2", "plane")
    for each in chaos:
        assert hand.do(each)
    assert [strike.gateway for strike in processes.strikes] == ["g1"]
    hand.peace()
    assert processes.strikes[0].to_s <= time.time()


def test_a_store_that_is_killed_comes_back_with_what_it_had(
    processes: HostProcesses, hand: Hand
) -> None:
    require_service(rclone_missing())
    processes.start_store()
    blobs = open_store(processes.store)
    blobs.put("kept", b"what was stored")
    (kept,) = processes.kept["store"]
    first = kept.found
    assert first is not None
    chaos = Chaos()
    chaos.kill(store=1).for_(600)
    assert hand.do(act(chaos)) == ["store"]
    assert not first.alive
    assert kept.found is None
    hand.peace()
    eventually(lambda: kept.found is not None, "it is started again")
    assert blobs.get("kept") == b"what was stored"


def test_a_store_that_is_paused_answers_when_it_goes_on(
    processes: HostProcesses, hand: Hand
) -> None:
    require_service(rclone_missing())
    processes.start_store()
    (kept,) = processes.kept["store"]
    found = kept.found
    assert found is not None
    chaos = Chaos()
    chaos.pause(store=1).for_(600)
    assert hand.do(act(chaos)) == ["store for 600 s"]
    eventually(lambda: stopped(found.pid), "it stands still")
    hand.peace()
    open_store(processes.store).put("later", b"")
    assert kept.found == found


def test_who_has_no_small_disk_is_not_filled(hand: Hand) -> None:
    chaos = Chaos()
    chaos.fill("plane")
    assert hand.do(act(chaos)) == []


def test_why_there_are_no_small_disks_is_said() -> None:
    if os.geteuid() != 0:
        assert "root" in NO_DISKS
    found = subprocess.run(
        [sys.executable, "-c", "from tests.proofs.chaos.disks import missing; print(missing())"],
        env={**os.environ, "PATH": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "apt-get install -y mount" in found.stdout or "root" in found.stdout


if not NO_DISKS:

    def test_a_full_disk_takes_not_a_byte_until_it_is_freed(tmp_path: Path) -> None:
        small = Disks()
        try:
            small.add("a", tmp_path / "a")
            small.add("b", tmp_path / "b")
            small.fill("a")
            small.fill("a")
            (tmp_path / "a" / "empty").touch()  # a name needs no room
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "a" / "more").write_bytes(b"x")
            (tmp_path / "b" / "other").write_bytes(b"x")
            small.free("a")
            assert small.full("a"), "it was filled twice"
            small.free("a")
            (tmp_path / "a" / "more").write_bytes(b"x")
        finally:
            small.close()

    def test_what_is_freed_on_a_full_disk_is_taken_too(tmp_path: Path) -> None:
        small = Disks()
        try:
            small.add("a", tmp_path / "a")
            (tmp_path / "a" / "old").write_bytes(bytes(1 << 20))
            small.fill("a")
            (tmp_path / "a" / "old").unlink()
            small.press()
            with pytest.raises(OSError, match="No space left"):
                (tmp_path / "a" / "more").write_bytes(b"x")
        finally:
            small.close()

    def test_closed_disks_are_gone_and_what_was_on_them_stays(tmp_path: Path) -> None:
        small = Disks()
        small.add("a", tmp_path / "a")
        (tmp_path / "a" / "folder").mkdir()
        (tmp_path / "a" / "folder" / "kept").write_bytes(b"x")
        small.fill("a")
        assert str(tmp_path / "a") in disks.mounted()
        small.close()
        assert str(tmp_path / "a") not in disks.mounted()
        assert (tmp_path / "a" / "folder" / "kept").read_bytes() == b"x"
        assert not (tmp_path / "a" / BALLAST).exists()

    def test_the_disks_of_a_killed_run_are_swept_and_no_others(tmp_path: Path) -> None:
        program = f"""
import time
from itertools import count
from pathlib import Path
from tests.proofs.chaos.disks import Disks
Disks().add("a", Path({str(tmp_path)!r}) / "left")
time.sleep(600)
"""
        place = str(tmp_path / "left")
        own = Disks()
        own.add("a", tmp_path / "own")
        run = subprocess.Popen([sys.executable, "-c", program])
        try:
            eventually(lambda: place in disks.mounted(), "it has its disk")
            assert not [words for words in disks.sweep() if place in words], "it lives"
            run.kill()
            run.wait()
            assert [words for words in disks.sweep() if place in words]
            assert place not in disks.mounted()
            assert str(tmp_path / "own") in disks.mounted()
        finally:
            run.kill()
            run.wait()
            own.close()

    def test_the_servers_disk_is_filled_and_its_writes_go_on_when_it_is_freed(
        processes: HostProcesses, hand: Hand
    ) -> None:
        processes.lay_disks()
        processes.start_servers()
        chaos = Chaos()
        chaos.fill("plane").for_(600)
        chaos.kill(server=1)
        fill, kill = chaos
        with connect(processes.plane(DIRECTOR)) as session:
            member, numbers = Membership(session, "/members").join("a"), count()
            assert hand.do(fill) == ["for 600 s"]

            def written() -> bool:
                try:
                    member.update(f"{next(numbers)}" + "x" * 50_000)
                except RetryError:
                    return False
                return True

            eventually(lambda: not written(), "there is no room")
            assert hand.do(kill) == [], "nothing is promised of whom starts on a full disk"
            hand.peace()
            eventually(written, "there is room")
        assert hand.do(kill) == ["plane"]


def test_a_process_that_was_ended_is_gone() -> None:
    with subprocess.Popen(SLEEP) as child:
        ticks = start_ticks(child.pid)
        assert ticks is not None
        assert not end(child.pid, ticks + 1), "that is another one"
        assert child.poll() is None
        assert end(child.pid, ticks)
        assert start_ticks(child.pid) is None
