"""The homes of names and the ledger of the asynchronous mode: no network, no clock."""

from __future__ import annotations

import json
import random

from holdfast.train.modes.asynchronous.ledger import TicketLedger
from holdfast.train.modes.asynchronous.shard_server import LEDGER, homes_of, servers_of

# As of a network: a few large matrices, many small vectors.
SIZES = {
    f"model/{layer}.{part}": size
    for layer in range(24)
    for part, size in {
        "in": 3 << 20,
        "out": 1 << 20,
        "up": 4 << 20,
        "down": 4 << 20,
        "b": 9,
    }.items()
}


def begun(lanes: int = 4, steps: int = 5, epochs: int | None = 2) -> TicketLedger:
    ledger = TicketLedger(lanes)
    ledger.enter(0, steps, epochs)
    return ledger


def test_a_server_that_comes_or_goes_moves_little_more_than_its_share_of_the_bytes() -> None:
    whole = sum(SIZES.values())
    three, four = homes_of(SIZES, [0, 1, 3]), homes_of(SIZES, [0, 1, 2, 3])
    moved = sum(size for name, size in SIZES.items() if three[name] != four[name])
    assert 0.2 < moved / whole < 0.4, "a quarter has to"
    assert three == homes_of(dict(reversed(SIZES.items())), [3, 1, 0]), "all members agree"


def test_no_server_has_much_more_bytes_than_another() -> None:
    homes = homes_of(SIZES, range(4))
    held = [sum(SIZES[name] for name in SIZES if homes[name] == server) for server in range(4)]
    assert max(held) <= 1.25 * sum(held) / 4


def test_the_ledger_is_where_it_is_whatever_the_names() -> None:
    assert homes_of({}, [0, 1, 2])[LEDGER] == homes_of(SIZES, [0, 1, 2])[LEDGER]


def test_the_longest_living_members_serve_one_for_every_four() -> None:
    assert servers_of([5, 3]) == (3,)
    assert servers_of(range(8)) == (0, 1)
    assert servers_of(range(3), wanted=2) == (0, 1)
    assert servers_of([4], wanted=2) == (4,)


def test_every_ticket_is_given_out_once_and_the_loop_is_over_when_all_are_done() -> None:
    ledger = begun()
    given: list[int] = []
    while tickets := ledger.take(1, 3):
        given += tickets
        assert not ledger.over
        ledger.acknowledge(1, tickets)
        ledger.settled(1)
    assert sorted(given) == list(range(40))
    assert ledger.over
    assert (ledger.completed, ledger.epoch, ledger.repeated) == (10, 2, 0)


def test_the_tickets_of_a_dead_worker_are_given_out_again_and_counted() -> None:
    ledger = begun()
    dead, other = ledger.take(1, 1), ledger.take(2, 1)
    ledger.members([2, 3])
    assert ledger.lost == 1
    assert ledger.take(3, 1) == dead
    ledger.acknowledge(2, other)
    ledger.acknowledge(1, dead)  # it was not dead, only cut off
    ledger.acknowledge(3, dead)
    assert ledger.repeated == 1


def test_each_step_and_each_epoch_is_credited_to_one_acknowledgement() -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance, ledger = random.Random(seed), begun(lanes=3, steps=4, epochs=3)
    held: list[tuple[int, int]] = []
    steps: list[int] = []
    epochs: list[int] = []
    while not ledger.over:
        worker = chance.randrange(3)
        held += [(worker, ticket) for ticket in ledger.take(worker, 1 + chance.randrange(3))]
        if not held:
            continue
        who, ticket = held.pop(chance.randrange(len(held)))
        credit = ledger.acknowledge(who, [ticket])
        steps += range(credit.first_step + 1, credit.step + 1)
        epochs += range(credit.first_epoch + 1, credit.epoch + 1)
        assert credit.completes == (who in ledger.duties)
        ledger.settled(who)
    assert steps == list(range(1, 13))
    assert epochs == [1, 2, 3]


def test_the_loop_is_not_over_while_somebody_runs_hooks_unless_it_is_gone() -> None:
    ledger = begun(lanes=1, steps=1, epochs=1)
    ledger.acknowledge(1, ledger.take(1, 1))
    assert not ledger.over
    ledger.members([2])
    assert ledger.over


def test_a_ledger_that_comes_back_older_learns_from_the_living_what_it_has_forgotten() -> None:
    ledger = begun(epochs=None)
    old = json.loads(json.dumps(ledger.body()))
    first, second, third = ledger.take(1, 2), ledger.take(2, 2), ledger.take(3, 2)
    ledger.acknowledge(1, first)
    again = TicketLedger.of(old)
    again.recall(1, held=[], lately=first)
    again.recall(2, held=second, lately=[])
    again.members([1, 2])  # worker 3 is dead, and what it held is known to nobody
    assert (again.low, again.out) == (2, dict.fromkeys(second, 2))
    assert again.take(1, 2) == third, "so its tickets are simply the next"
    assert again.repeated == 0


def test_after_a_stop_nothing_is_given_out_and_what_is_out_is_waited_for() -> None:
    ledger = begun(epochs=None)
    held = ledger.take(1, 1)
    ledger.stop = True
    assert ledger.take(2, 1) == []
    assert not ledger.over
    ledger.acknowledge(1, held)
    assert ledger.over


def test_one_worker_does_what_all_ask_for_and_another_if_it_dies() -> None:
    ledger = begun()
    assert ledger.claim(1, "0 0")
    assert not ledger.claim(2, "0 0")
    ledger.members([2])
    assert ledger.claim(2, "0 0")
    ledger.result("0 0", {"a": 1})
    assert ledger.results["0 0"] == {"a": 1}
