"""Another machine joins with a token; here, another folder."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.agent.credential_store import CredentialStore
from holdfast.cluster import opened
from holdfast.coordination import Membership
from holdfast.launch import joining, local
from holdfast.system.certificates import Authority
from holdfast.wire import tokens
from holdfast.wire.errors import Missing, Refused, Unavailable
from holdfast.wire.rpc import NODES_PATH
from tests.integration.clusters import Home, holdfast, running
from tests.integration.person import WAIT_S
from tests.waiting import eventually


def nodes(home: Home) -> set[str]:
    with home.cluster.session() as session:
        return set(Membership(session, NODES_PATH).members())


def test_a_machine_joins_with_a_token_runs_a_job_and_leaves(home: Home, there: Path) -> None:
    home.up(agents=0)
    text = holdfast("token", "--cluster", str(home.cluster.folder), "--valid", "10m").stdout
    joined = holdfast("join", "-", "--node", "other", "--cluster", str(there), given=text)
    assert joined.returncode == 0, joined.stderr
    assert "node other has joined cluster local" in joined.stdout
    assert nodes(home) == {"other"}
    home.submit()
    home.started()
    home.release()
    home.ended()
    assert not opened(there).is_home
    left = holdfast("down", "--cluster", str(there))
    assert "other" in left.stdout
    assert running(there) == {}
    assert eventually(lambda: not nodes(home), "it has left")


def test_a_machine_that_joined_is_started_again_by_up_in_its_own_folder(
    home: Home, there: Path
) -> None:
    home.up(agents=0)
    joining.join(there, joining.token(home.cluster), "other")
    started = local.up(opened(there)).started
    assert started == ("agent other", "supervisor supervisor-1")
    assert nodes(home) == {"other"}


def test_a_machine_that_joins_in_the_foreground_leaves_upon_ctrl_c(home: Home, there: Path) -> None:
    import subprocess
    import sys

    home.up(agents=0)
    words = ["join", "-", "--node", "other", "--cluster", str(there), "--foreground"]
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", *words],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(joining.token(home.cluster))
    process.stdin.close()
    eventually(lambda: nodes(home) == {"other"}, "it is there")
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 0
    assert nodes(home) == set()
    assert process.stderr is not None
    process.stderr.close()


def test_a_token_that_has_ended_is_refused_with_the_way_to_a_new_one(
    home: Home, there: Path
) -> None:
    home.up(agents=0)
    text = joining.token(home.cluster, life_s=0.001)
    with pytest.raises(Refused, match="does not hold") as refused:
        joining.join(there, text, "other")
    assert "ended" in refused.value.why
    assert not (there / "cluster.json").exists()


def test_a_token_for_one_node_does_not_let_another_in(home: Home, there: Path) -> None:
    home.up(agents=0)
    with pytest.raises(Refused) as refused:
        joining.join(there, joining.token(home.cluster, node="gpu-7"), "other")
    assert "'gpu-7'" in refused.value.why


def test_a_token_of_another_cluster_is_refused(home: Home, there: Path, tmp_path: Path) -> None:
    home.up(agents=0)
    place = tokens.read(joining.token(home.cluster)).place
    stranger = Authority.make(tmp_path / "stranger", "local")
    forged = tokens.join_token(stranger, place=place)
    # It trusts the stranger, so it does not even speak to our join endpoint.
    with pytest.raises((Refused, Unavailable)):
        joining.join(there, forged, "other")
    assert not (there / "cluster.json").exists()


@pytest.mark.parametrize("text", ["", "nonsense", "holdfast1.e30.e30"])
def test_what_is_no_token_is_told_so(text: str, there: Path) -> None:
    with pytest.raises(Refused):
        joining.join(there, text, "other")


def test_a_changed_token_is_refused(home: Home, there: Path) -> None:
    home.up(agents=0)
    head, payload, signature = joining.token(home.cluster).split(".")
    other = "A" if signature[5] != "A" else "B"
    with pytest.raises(Refused, match="does not hold"):
        joining.join(there, f"{head}.{payload}.{signature[:5]}{other}{signature[6:]}", "other")


def test_a_cluster_that_is_down_has_no_join_endpoint_and_makes_no_token(home: Home) -> None:
    with pytest.raises(Unavailable) as unavailable:
        joining.token(home.cluster)
    assert unavailable.value.fix == "holdfast up"


def test_a_token_lets_one_machine_in_and_no_second_one(home: Home, tmp_path: Path) -> None:
    home.up(agents=0)
    text = joining.token(home.cluster)
    joining.join(tmp_path / "one", text, "one")
    with pytest.raises(Refused, match="does not hold any more") as refused:
        joining.join(tmp_path / "two", text, "two")
    assert "used once, and was: by one" in refused.value.why
    assert not (tmp_path / "two" / "cluster.json").exists()


def test_a_token_of_several_uses_lets_so_many_in(home: Home, tmp_path: Path) -> None:
    home.up(agents=0)
    found = holdfast("token", "--cluster", str(home.cluster.folder), "--uses", "2")
    text = found.stdout.strip()
    for name in ("one", "two"):
        joining.join(tmp_path / name, text, name)
    with pytest.raises(Refused, match="does not hold any more"):
        joining.join(tmp_path / "three", text, "three")


def test_nobody_gets_a_certificate_for_the_name_of_a_living_node(home: Home, there: Path) -> None:
    home.up(agents=1)
    for token in (joining.token(home.cluster), joining.token(home.cluster, node="node-1")):
        with pytest.raises(Refused, match="a node named node-1 is in the cluster, and lives"):
            joining.join(there, token, "node-1")
    assert not (there / "credentials").exists()


def test_the_name_of_a_dead_node_is_given_only_for_a_token_of_that_name(
    home: Home, there: Path
) -> None:
    home.up(agents=1)
    home.kill("agent")
    eventually(lambda: not nodes(home), "its session is over")
    with pytest.raises(Refused, match="was given to a machine before") as refused:
        joining.join(there, joining.token(home.cluster), "node-1")
    assert "holdfast token --node node-1" in refused.value.fix
    assert joining.join(there, joining.token(home.cluster, node="node-1"), "node-1").new


def test_a_token_in_the_command_line_is_refused_and_not_repeated(home: Home, there: Path) -> None:
    home.up(agents=0)
    text = joining.token(home.cluster)
    for words in (["join", text], ["standby", text]):
        done = holdfast(*words, "--cluster", str(there))
        assert done.returncode == 2
        assert "is not given in the command line" in done.stderr
        assert "--token-file" in done.stderr
        assert text not in done.stderr
    assert not there.exists()


def test_a_token_is_read_from_a_file(home: Home, there: Path, tmp_path: Path) -> None:
    home.up(agents=0)
    file = tmp_path / "token.txt"
    file.write_text(joining.token(home.cluster) + "\n")
    words = ["--token-file", str(file), "--node", "other", "--cluster", str(there)]
    joined = holdfast("join", *words)
    assert joined.returncode == 0, joined.stderr
    assert nodes(home) == {"other"}


def test_a_machine_that_joined_makes_no_tokens(home: Home, there: Path) -> None:
    home.up(agents=0)
    joined = joining.join(there, joining.token(home.cluster), "other")
    with pytest.raises(Missing, match="cannot make tokens"):
        joining.token(joined.cluster)


def test_joining_again_brings_new_papers_for_the_same_node(home: Home, there: Path) -> None:
    home.up(agents=0)
    joining.join(there, joining.token(home.cluster), "other")
    before = CredentialStore.open(there / "credentials" / "other").credentials
    again = joining.join(there, joining.token(home.cluster, node="other"), "other")
    assert not again.new
    assert CredentialStore.open(there / "credentials" / "other").credentials != before


def test_the_folder_where_a_cluster_was_made_does_not_join_another(
    home: Home, tmp_path: Path
) -> None:
    home.up(agents=0)
    other = local.make(tmp_path / "own", name="own")
    with pytest.raises(Refused, match="is the folder of cluster 'own'"):
        joining.join(other.folder, joining.token(home.cluster), "other")


def test_a_token_can_still_be_used_after_the_coordinator_was_started_again(
    home: Home, there: Path
) -> None:
    home.up(agents=0)
    text = joining.token(home.cluster)
    coordinator = home.process("coordinator")
    coordinator.send(signal.SIGTERM)
    assert coordinator.wait(60.0)
    home.up(agents=0)
    assert joining.join(there, text, "other").new
