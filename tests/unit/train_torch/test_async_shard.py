"""What a parameter server does with pushes, and what a worker does while it is away."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.train.modes.asynchronous.messages import Peers, message
from holdfast.train.modes.asynchronous.server import RequestServer, nothing
from holdfast.train.modes.asynchronous.shard import Shard, names_of
from holdfast.train.modes.asynchronous.shard_server import LEDGER, ShardServer
from holdfast.train.modes.asynchronous.traffic import Traffic
from holdfast.train.states.memory import entry
from holdfast.train.states.state import StateEntry, TrainingState
from holdfast.train.states.tracked import Tracked
from holdfast.wire.errors import PeerLost, Usage
from holdfast.wire.orders import View
from tests.credentials import credentials

LANES = 2


def script() -> tuple[Tracked, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracked = Tracked()
    tracked.add("model", model)
    tracked.add("optimizer", optimizer)
    return tracked, model, optimizer


def serving(tracked: Tracked, staleness: int = 8) -> Shard:
    shard = Shard(tracked, LANES, staleness)
    for name in shard.names.all:
        shard.take(None, name, 0, None, TrainingState(0))
    return shard


def push(shard: Shard, name: str, gradient: torch.Tensor, version: int) -> list[str]:
    """One worker's push of one sample's gradient; what was refused."""
    request = message({"pushed": {name: [version, 1, 1]}}, [entry(name, gradient)])
    return shard.push(request)[0]


def traffic_of(tracked: Tracked, shard: Shard, ask: Any) -> Traffic:
    (optimizer,) = tracked.optimizers.values()
    group = optimizer.param_groups[0]
    return Traffic(names_of(tracked), ask, dict.fromkeys(shard.names.parameters, group))


def test_an_update_is_the_mean_of_as_many_pushes_as_there_are_lanes() -> None:
    tracked, model, optimizer = script()
    shard, name = serving(tracked), "model/0.weight"
    weight = model.get_parameter("0.weight")
    ones, threes = torch.ones_like(weight), torch.full_like(weight, 3.0)
    push(shard, name, ones, 0)
    assert shard.held[name].version == 0, "one push is not enough"
    push(shard, name, threes, 0)
    assert shard.held[name].version == 1
    weight.grad = torch.full_like(weight, 2.0)
    optimizer.step()
    assert torch.equal(shard.held[name].value, weight), "what the script's optimizer makes of it"


def test_the_servers_update_uses_the_rate_that_the_script_has_now() -> None:
    tracked, model, optimizer = script()
    shard, name = serving(tracked), "model/0.bias"
    bias = model.get_parameter("0.bias")
    optimizer.param_groups[0]["lr"] = 0.001
    for _ in range(LANES):
        push(shard, name, torch.ones_like(bias), 0)
    moved = (shard.held[name].value - bias.detach()).abs().max()
    assert 0 < float(moved) < 0.002


def test_a_push_from_weights_that_are_too_old_is_refused_and_changes_nothing() -> None:
    tracked, model, _ = script()
    shard, name = serving(tracked, staleness=1), "model/0.bias"
    gradient = torch.ones_like(model.get_parameter("0.bias"))
    for version in (0, 0, 1, 1):
        assert push(shard, name, gradient, version) == []
    before = shard.held[name].value.clone()
    assert shard.held[name].version == 2
    assert push(shard, name, gradient, 0) == [name]
    assert push(shard, name, gradient, 0) == [name]
    assert torch.equal(shard.held[name].value, before)
    assert push(shard, name, gradient, 1) == [], "one update old is allowed"


def test_what_moves_to_another_server_goes_on_as_if_it_had_stayed() -> None:
    tracked, model, _ = script()
    stays, moves, new = serving(tracked), serving(tracked), Shard(tracked, LANES, 8)
    name = "model/2.weight"
    weight = model.get_parameter("2.weight")
    gradients = [torch.randn_like(weight) for _ in range(4)]
    for shard in (stays, moves):
        for gradient in gradients[:2]:
            push(shard, name, gradient, 0)
    entries, notes = moves.spelled([name])
    told = TrainingState.read(memoryview(b"".join(message({}, entries).buffers())))
    new.take(told, name, notes[name]["version"], notes[name]["kept"], told)
    moves.drop([name])
    for shard in (stays, new):
        for gradient in gradients[2:]:
            push(shard, name, gradient, 1)
    assert torch.equal(stays.held[name].value, new.held[name].value)
    assert new.held[name].version == 2
    assert push(moves, name, gradients[0], 2) == []
    assert name not in moves.held


def test_a_worker_goes_on_alone_and_pushes_the_sum_when_the_server_is_back() -> None:
    tracked, model, _ = script()
    shard = serving(tracked)
    home = ShardServer(0, LANES, shard, traffic_of(tracked, shard, None))
    there = True

    def ask(_home: int, notes: Mapping[str, Any], entries: list[StateEntry]) -> TrainingState:
        if not there:
            raise PeerLost("it is away")
        return home.push(message(notes, entries))

    traffic = traffic_of(tracked, shard, ask)
    homes = dict.fromkeys([*shard.names.all, LEDGER], 0)
    assert traffic.pull(homes)
    name = "model/0.bias"
    bias = model.get_parameter("0.bias")
    first = bias.detach().clone()
    there = False
    for value in (1.0, 3.0):
        traffic.push({name: torch.full_like(bias, value)}, 5, homes)
    assert traffic.alone == 2
    assert torch.allclose(bias, first - 0.1 * 4.0), "plain steps on its own copy"
    assert torch.equal(shard.held[name].value, first)
    there = True
    assert traffic.pull(homes)
    assert not traffic.waiting
    assert shard.held[name].version == 1, "two pushes in one"
    assert torch.equal(bias, shard.held[name].value), "the server's value counts"
    assert not torch.equal(bias, first)


def test_narrow_gradients_are_half_the_bytes_and_make_nearly_the_same_sum() -> None:
    tracked, model, _ = script()
    shard = serving(tracked)
    sizes: dict[str, int] = {}

    def ask(_home: int, notes: Mapping[str, Any], entries: list[StateEntry]) -> TrainingState:
        sizes.update((each.name, each.data.nbytes) for each in entries)
        return home_of(shard, tracked).push(message(notes, entries))

    groups = {each: {"lr": 0.1} for each in shard.names.parameters}
    traffic = Traffic(names_of(tracked), ask, groups, narrow=True)
    name = "model/0.bias"
    gradient = torch.randn_like(model.get_parameter("0.bias"))
    traffic.push({name: gradient}, 3, dict.fromkeys([*shard.names.all, LEDGER], 9))
    assert sizes[name] == 2 * gradient.numel()
    found = shard.held[name].sum
    assert found is not None and found.dtype == torch.float32
    assert torch.allclose(found, 3 * gradient, rtol=1e-2)


def test_a_dead_servers_names_come_back_with_the_newest_values_and_the_copied_moments() -> None:
    tracked, model, _ = script()
    name = "model/0.bias"
    gradient = torch.ones_like(model.get_parameter("0.bias"))
    dead = serving(tracked)
    for version in (0, 0):
        push(dead, name, gradient, version)
    entries, notes = dead.spelled()
    copied = message({"names": notes, "ledger": None}, entries)
    for version in (1, 1):
        push(dead, name, gradient, version)
    shard = Shard(tracked, LANES, 8)
    seer = traffic_of(tracked, shard, lambda *_: home_of(dead, tracked).push(_request(dead)))
    seer.pull(dict.fromkeys([*shard.names.all, LEDGER], 9))  # its worker has seen version 2
    home = ShardServer(1, LANES, shard, seer)
    home.keep(copied)
    home.enter(View(2, {1: (0, 1)}, None, "", {1: "127.0.0.1:1"}, 0), 1)
    peers = Peers(credentials(), 1)
    assert home.fetch(peers, None)
    assert home.ledger is not None and home.ledger.next == 0, "nobody living had the ledger"
    held = shard.held[name]
    assert held.version == 2
    assert torch.equal(held.value, dead.held[name].value)
    assert shard.spelled([name])[1][name]["kept"], "the moments of the copy"


def home_of(shard: Shard, tracked: Tracked) -> ShardServer:
    return ShardServer(9, LANES, shard, traffic_of(tracked, shard, None))


def _request(shard: Shard) -> TrainingState:
    return message({"pushed": {}, "known": dict.fromkeys(shard.names.all, -1)})


def test_a_thing_that_servers_cannot_combine_is_refused_by_name() -> None:
    tracked, _, _ = script()
    tracked.add("scaler", torch.amp.GradScaler(device="cpu"))
    with pytest.raises(Usage, match="scaler"):
        names_of(tracked)


def test_a_stranger_at_a_servers_port_is_cut_off_and_a_bug_there_is_told() -> None:
    failures: list[BaseException] = []

    def bug(_request: TrainingState) -> TrainingState:
        raise ZeroDivisionError

    answers: dict[str, Callable[[TrainingState], TrainingState]] = {
        "hello": lambda _request: nothing(here=True),
        "bug": bug,
    }
    server = RequestServer(credentials(), 7, ("127.0.0.1", 0), answers, failures.append)
    address = f"127.0.0.1:{server.port}"
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as line:
            line.sendall(b"GET / HTTP/1.1")
            assert line.recv(1) == b""
        with pytest.raises(PeerLost):
            Peers(credentials("another job"), 1).call(address, {"ask": "hello"})
        assert Peers(credentials(), 1).call(address, {"ask": "hello"}).notes["here"]
        assert not failures
        with pytest.raises(PeerLost):
            Peers(credentials(), 1).call(address, {"ask": "bug"})
        assert isinstance(failures[0], ZeroDivisionError), "a bug is not hidden"
    finally:
        server.close()
    with pytest.raises(PeerLost):
        Peers(credentials(), 1).call(address, {"ask": "hello"})
