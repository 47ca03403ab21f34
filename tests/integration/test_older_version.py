"""A folder and an ensemble of the version before values had one spelling are opened by this one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.agent.credential_store import CredentialStore
from holdfast.agent.events import Accepted, Held, Key, Started
from holdfast.agent.journal import Journal
from holdfast.cli.main import app
from holdfast.cluster import Cluster, opened
from holdfast.cluster.migration import check_plane, living, migrate_plane
from holdfast.control.decide.facts import (
    Checkpoint,
    CheckpointRecovery,
    Phase,
    QueueQuota,
    Setting,
    View,
)
from holdfast.control.store.plane import ControlPlane
from holdfast.coordination import Membership, Session, connect
from holdfast.launch import local, migrating
from holdfast.models.catalogue import Catalogue
from holdfast.serve.gateway import gateway
from holdfast.serve.records import RolloutStage
from holdfast.serve.services import Services
from holdfast.storage import manifests
from holdfast.wire.errors import Refused
from holdfast.wire.names import NODES_PATH
from holdfast.wire.probes import Probe, ProbeKind
from holdfast.wire.resources import Resources
from tests.conftest import require_service
from tests.contract.planes import Plane
from tests.integration.clusters import Home
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

OLDER = Path(__file__).parents[1] / "golden" / "older"
SAVED = (262, 310, 359)
NEXT = "tests.integration.next_version"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    with tarfile.open(OLDER / "cluster.tar.xz") as packed:
        packed.extractall(folder, filter="data")
    home = object.__new__(Home)
    home.cluster = opened(folder, of_older=True)
    yield home.cluster
    home.end()


KILLED = """
import os, signal, sys
from pathlib import Path
from holdfast.cluster import opened
from holdfast.launch import migrating

def look(what):
    if what.startswith(f"moved {sys.argv[2]} of "):
        os.kill(os.getpid(), signal.SIGKILL)

migrating.migrate(opened(Path(sys.argv[1]), of_older=True), look=look, at_once=1)
"""


def test_a_migration_that_is_killed_goes_on_where_it_was(cluster: Cluster) -> None:
    for moved in ("1", "2", "3", "1"):  # each time of those that are left; the last: the election
        with pytest.raises(Refused, match="holdfast migrate --cluster"):
            opened(cluster.folder)
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(cluster.folder), moved], check=False, timeout=120
        )
        assert killed.returncode == -signal.SIGKILL
    done = CliRunner().invoke(app, ["migrate", "--cluster", str(cluster.folder), "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert said["nodes"] == 0 and "wallet -> credentials" in said["files"]
    again = CliRunner().invoke(app, ["migrate", "--cluster", str(cluster.folder)])
    assert "is of this version; nothing to do" in again.output
    now = opened(cluster.folder)
    with now.session() as session:
        is_what_was_written(session)
        check_plane(session)
        assert "asked" not in session.nodes.children("/holdfast/jobs/going")
    assert (
        CredentialStore.open(now.node_credentials_folder("node-1")).credentials.identity.peer.node
        == "node-1"
    )


def test_nothing_is_moved_while_a_part_of_the_cluster_lives(plane: Plane) -> None:
    with connect(plane.address()) as session, connect(plane.address()) as other:
        as_written(session)
        with Membership(other, NODES_PATH).join("gpu-7"):
            with pytest.raises(Refused, match="was not migrated yet"):
                check_plane(session)
            assert living(session) == ["agent gpu-7"]
        assert not living(session)


def test_a_folder_is_opened_with_its_jobs_checkpoints_models_and_services(
    cluster: Cluster,
) -> None:
    migrating.migrate(cluster)
    with cluster.session() as session:
        control = ControlPlane(session)
        is_what_was_written(session)
        blobs = cluster.blobs()
        for checkpoint in control.job("going").checkpoints:
            manifest = manifests.read_manifest(blobs, checkpoint.manifest)
            assert manifest.step == checkpoint.step
            manifests.verify(blobs, manifest)
    journal, found = Journal.open(cluster.folder / "nodes" / "node-1")
    journal.close()
    assert not found.cut_bytes
    held = [entry for entry in found.entries if isinstance(entry, Held)]
    assert {entry.key for entry in found.entries if isinstance(entry, Started)} == {
        Key("web", 1),
        *(Key(job, worker) for job in ("done", "going") for worker in (1, 2)),
        Key("serve.rings", 1),
    }
    assert Held(Key("going", 1), 3, None) in [
        Held(entry.key, entry.view, None, entry.ready, entry.linked) for entry in held
    ]
    orders = {
        entry.order.job: entry.order for entry in found.entries if isinstance(entry, Accepted)
    }
    assert orders["web"].ready == Probe(ProbeKind.HTTP, "http", "/index.html")
    assert orders["going"].references == {"WORD": "word"} and not orders["going"].secrets
    known = gateway.recall(cluster.folder / "gateways" / "gateway-1")
    assert known is not None and "rings" in str(known)


def test_a_plane_is_opened_with_all_that_it_holds(plane: Plane) -> None:
    with connect(plane.address()) as session:
        as_written(session)
        client = vars(session)["_client"]
        for _ in range(300):  # terms of conductors, before and after
            client.set(f"{session.chroot}/holdfast/conductor/term", b"{}")
        term = session.nodes.read("/holdfast/conductor/term")
        seen: list[tuple[int, int]] = []
        assert migrate_plane(session, lambda done, all_: seen.append((done, all_))) == 7
        assert seen == [(6, 7), (7, 7)]
        assert migrate_plane(session) == 0
        check_plane(session)
        is_what_was_written(session)
        now = session.nodes.read("/holdfast/rollout-controller/term")
        assert term and now and now.version == term.version
        assert session.nodes.read("/holdfast/conductor") is None


def as_written(session: Session) -> None:
    client = vars(session)["_client"]
    for path, (text, ephemeral) in json.loads((OLDER / "znodes.json").read_text()).items():
        if path != "/" and not ephemeral:
            client.ensure_path(f"{session.chroot}{path}")
            client.set(f"{session.chroot}{path}", text.encode())


def is_what_was_written(session: Session) -> None:
    control, catalogue, services = ControlPlane(session), Catalogue(session), Services(session)
    jobs = control.jobs()
    phases = {name: job.status.phase for name, job in jobs.items()}
    assert phases == {
        "done": Phase.SUCCEEDED,
        "going": Phase.RUNNING,
        "serve.rings": Phase.RUNNING,
        "web": Phase.RUNNING,
    }
    going = jobs["going"]
    assert going.view == View(
        3,
        {1: (0, 1), 2: (2, 3)},
        addresses={1: "127.0.0.1:20403", 2: "127.0.0.1:20405"},
        settings=2,
    )
    assert tuple(saved.step for saved in going.checkpoints) == SAVED
    assert all(isinstance(saved, Checkpoint) and saved.term == 1 for saved in going.checkpoints)
    assert going.settings == (Setting("lr", "0.02", 0),)
    assert [(each.worker, each.node) for each in going.placements] == [(1, "node-1"), (2, "node-1")]
    assert going.spec.checkpoint.every_s == 5.0 and going.spec.secrets == {"WORD": "word"}
    assert going.recovery is CheckpointRecovery.NONE
    assert jobs["done"].finished_step == 6
    assert jobs["web"].spec.ports == {"http": 0}
    assert jobs["web"].spec.live == Probe(ProbeKind.HTTP, "http", "/index.html", every_s=10.0)
    assert control.queues()["people"] == QueueQuota("people", Resources(cpu=4.0))
    assert any("WriteView" in entry.what for entry in control.history("going"))
    (version,) = catalogue.versions("rings")
    assert version.number == 1 and version.job == "done"
    assert catalogue.resolve("rings@prod").version == version
    assert set(services.services()) == {"rings"}
    plan = services.plan("rings")
    assert plan is not None and plan.stage is RolloutStage.STEADY
    assert any("version 1" in entry.reason for entry in services.history("rings"))


class Whole:
    """The cluster in its processes, with what trains and what answers."""

    def __init__(self, cluster: Cluster) -> None:
        require_service(envoy_missing())
        self._listen = f"127.0.0.1:{free_port()}"
        places = cluster.folder / "serving.json"
        places.write_text(places.read_text().replace("127.0.0.1:8080", self._listen))
        self.home = object.__new__(Home)
        migrating.migrate(cluster)
        self.home.cluster = cluster
        self.home.up()

    def saved(self) -> int:
        with self.home.control() as control:
            return control.job("going").checkpoints[-1].step

    def goes_on(self, after: int) -> int:
        """It trains, commits and answers: a later step than `after` is saved."""

        def later() -> int:
            step = self.saved()
            return step if step > after else 0

        saved = eventually(later, f"it saves a step after {after}", 180.0)
        assert eventually(self._answered, "the service answers", 120.0)
        return saved or 0

    def _answered(self) -> bytes | None:
        url = f"http://{self._listen}/predict/rings"
        asked = urllib.request.Request(url, b'{"x": [[0.1, 0.2]]}')
        try:
            with urllib.request.urlopen(asked, timeout=10.0) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    def become(self, kind: str, module: str) -> None:
        """Kill the process of this kind; another one, started through `module`, takes its place."""
        before = self.home.process(kind)
        first = next(at for at, word in enumerate(before.command) if word.startswith("holdfast."))
        words = before.command[first:]
        self.home.kill(kind)
        log = self.home.cluster.folder / "logs" / f"{kind}-again.log"
        through = [sys.executable, "-m", module] if module else [sys.executable, "-m"]
        with log.open("ab") as told:
            subprocess.Popen([*through, *words], stdout=told, stderr=told, start_new_session=True)

        def is_there() -> bool:
            return any(one.kind == kind for one in local.processes(self.home.cluster))

        eventually(is_there, f"another {kind} is there")


@pytest.mark.engines
def test_the_whole_cluster_goes_on_where_it_was_killed(cluster: Cluster) -> None:
    Whole(cluster).goes_on(SAVED[-1])


@pytest.mark.engines
def test_this_version_and_the_next_train_and_serve_side_by_side_in_either_order(
    cluster: Cluster,
) -> None:
    whole = Whole(cluster)
    whole.become("agent", NEXT)
    saved = whole.goes_on(SAVED[-1])
    whole.become("agent", "")  # it reads the journal that the newer one has written
    whole.become("coordinator", NEXT)
    saved = whole.goes_on(saved + 1)
    whole.become("coordinator", "")
    whole.goes_on(saved + 1)
    journal = (cluster.folder / "nodes" / "node-1" / "journal").read_bytes()
    assert b"danced" in journal
    logged = (cluster.folder / "logs" / "agent-again.log").read_text()
    assert "a newer version wrote to the journal" in logged
