"""The mirror of the plane: it holds what the plane holds, whatever happens to either."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from holdfast.coordination import Fact, Mirror, Mirrored, Session, single
from holdfast.coordination.embedded import protocol
from holdfast.wire.errors import Corrupt, TerminalError
from tests.contract.cutting import CuttingProxy
from tests.contract.expiring import expire
from tests.contract.interleaving import after_first
from tests.waiting import eventually

Sessions = Callable[..., Session]


def number(path: str, data: bytes) -> int:
    try:
        return int(data)
    except ValueError as error:
        raise Corrupt(f"{path} holds no number", why=str(error)) from error


class Job(NamedTuple):
    spec: bytes
    settings: bytes | None
    state: bytes
    pages: tuple[bytes, ...]
    state_version: int


def job_of(path: str, found: dict[str, Fact] | Any) -> Job:
    if f"{path}/state" not in found:
        raise Corrupt(f"{path} has lost its state")
    settings, state = found.get(f"{path}/settings"), found[f"{path}/state"]
    pages = tuple(found[one].data for one in sorted(found) if one.startswith(f"{path}/pages/"))
    spec = found[path].data
    return Job(spec, settings.data if settings else None, state.data, pages, state.version)


class Kept:
    """A mirror of numbers at three depths, of one fixed value and of jobs of several nodes."""

    def __init__(self, session: Session, **bounds: int) -> None:
        self.woken = threading.Event()
        self.tops = Mirrored("/tops/*", single(number))
        self.leaves = Mirrored("/tops/*/below/*", single(number))
        self.marks = Mirrored("/tops/*/mark", single(number))
        self.fixed = Mirrored("/fixed", single(number), keeps_last=True)
        self.jobs = Mirrored("/jobs/*", job_of, watched=("settings",), parts=("state", "pages/*"))
        self.asked = Mirrored(None, single(number))
        every = (self.tops, self.leaves, self.marks, self.fixed, self.jobs, self.asked)
        self.mirror = Mirror(session, *every, wake=self.woken.set, **bounds)
        self.mirror.refresh()

    def becomes(self, mirrored: Mirrored[Any], wanted: dict[str, Any], why: str) -> None:
        """It gets there, and is woken for it: nothing is read that no watch has told of."""

        def there() -> bool:
            if self.woken.is_set():
                self.woken.clear()
                self.mirror.refresh()
            return mirrored.values == wanted

        eventually(there, f"{why}: {wanted}, not {mirrored.values}")


@pytest.fixture
def other(another: Sessions) -> Session:
    return another()


def make(session: Session, path: str, data: bytes = b"") -> None:
    session.nodes.ensure(path.rpartition("/")[0] or "/")
    session.nodes.create(path, data)


def put(session: Session, path: str, data: bytes) -> None:
    session.nodes.client.set(session.nodes.full(path), data)


def remove(session: Session, path: str) -> None:
    for name in session.nodes.children(path, fresh=True):
        remove(session, f"{path}/{name}")
    session.nodes.delete(path)


def requests(session: Session, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What this session asks from now on, by kind, without the keeper's signs of life."""
    asked: Counter[str] = Counter()
    client: Any = session._client
    for name in ("get", "exists", "get_children", "sync"):
        plain = getattr(client, f"{name}_async")

        def counted(path: str, name: str = name, plain: Any = plain, **named: Any) -> Any:
            asked[name] += path != "/"
            return plain(path, **named)

        monkeypatch.setattr(client, f"{name}_async", counted)
    return asked


def test_what_comes_changes_goes_and_comes_back_at_any_depth_is_held(
    session: Session, other: Session
) -> None:
    kept = Kept(session)
    make(other, "/tops/a", b"1")
    kept.becomes(kept.tops, {"/tops/a": 1}, "it comes")
    make(other, "/tops/a/below/x", b"2")
    make(other, "/tops/a/below/y", b"3")
    kept.becomes(kept.leaves, {"/tops/a/below/x": 2, "/tops/a/below/y": 3}, "those below come")
    make(other, "/tops/a/mark", b"4")
    kept.becomes(kept.marks, {"/tops/a/mark": 4}, "what was waited for comes")
    put(other, "/tops/a/below/x", b"5")
    kept.becomes(kept.leaves, {"/tops/a/below/x": 5, "/tops/a/below/y": 3}, "one changes")
    remove(other, "/tops/a/below/y")
    kept.becomes(kept.leaves, {"/tops/a/below/x": 5}, "one goes")
    remove(other, "/tops/a")
    kept.becomes(kept.tops, {}, "the top goes")
    kept.becomes(kept.leaves, {}, "with what is below it")
    make(other, "/tops/a", b"6")
    make(other, "/tops/a/below/x", b"7")
    kept.becomes(kept.leaves, {"/tops/a/below/x": 7}, "it comes back")
    assert kept.tops.values == {"/tops/a": 6}
    assert kept.marks.values == {}


def test_one_that_is_removed_and_made_again_between_two_looks_is_another(
    session: Session, other: Session
) -> None:
    make(other, "/jobs/j", b"spec")
    make(other, "/jobs/j/state", b"old")
    kept = Kept(session)
    assert kept.jobs.values["/jobs/j"].state == b"old"
    remove(other, "/jobs/j")
    make(other, "/jobs/j", b"spec")
    make(other, "/jobs/j/state", b"new")

    def seen() -> bool:
        kept.mirror.refresh()
        return kept.jobs.values.get("/jobs/j", ("",) * 3)[2] == b"new"

    eventually(seen, "its state is the new one's, although nobody watches states")


def test_a_change_is_told_once_with_its_path_and_costs_one_read(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        make(other, f"/tops/{name}", b"1")
    kept = Kept(session)
    asked = requests(session, monkeypatch)
    put(other, "/tops/b", b"2")
    eventually(kept.woken.is_set, "it is woken")
    assert not kept.mirror.caught_up
    assert kept.mirror.refresh() == {"/tops/b"}
    assert asked == {"get": 1}
    assert kept.mirror.refresh() == set()
    assert asked == {"get": 1}
    assert kept.mirror.caught_up


def test_several_nodes_are_one_value_and_only_those_that_are_watched_wake(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(other, "/jobs/j", b"spec")
    make(other, "/jobs/j/state", b"s")
    make(other, "/jobs/j/pages/0", b"p0")
    kept = Kept(session)
    assert kept.jobs.values == {"/jobs/j": Job(b"spec", None, b"s", (b"p0",), 0)}
    put(other, "/jobs/j/state", b"t")
    make(other, "/jobs/j/settings", b"lr")  # a part that was not there is waited for
    job = Job(b"spec", b"lr", b"t", (b"p0",), 1)
    kept.becomes(kept.jobs, {"/jobs/j": job}, "the settings wake, and all is read")
    kept.mirror.put(kept.jobs, "/jobs/j", job._replace(state=b"u", state_version=2))
    asked = requests(session, monkeypatch)
    assert kept.mirror.refresh() == set()
    assert kept.jobs.values["/jobs/j"].state == b"u"
    assert not asked
    kept.mirror.invalidate("/jobs/j")
    assert kept.mirror.refresh() == {"/jobs/j"}
    assert kept.jobs.values["/jobs/j"] == job, "what was doubted is read again, as a whole"
    assert asked == {"get": 3 + 1, "get_children": 1, "sync": 1}


def test_what_this_process_wrote_and_others_removed_is_gone(
    session: Session, other: Session
) -> None:
    make(other, "/fixed", b"1")
    kept = Kept(session)
    kept.mirror.put(kept.fixed, "/fixed", 2)
    remove(other, "/fixed")
    kept.becomes(kept.fixed, {}, "its node is gone")


def test_a_change_while_it_reads_is_seen_by_the_next_look(session: Session, other: Session) -> None:
    make(other, "/tops/a", b"1")
    kept = Kept(session)
    put(other, "/tops/a", b"2")
    eventually(kept.woken.is_set, "it is woken")
    kept.woken.clear()

    def change() -> None:
        put(other, "/tops/a", b"3")
        eventually(kept.woken.is_set, "the watch of this very read fires")

    with after_first(session._client, "get_async", change):
        kept.mirror.refresh()
    kept.becomes(kept.tops, {"/tops/a": 3}, "the change between its read and its end")


def test_a_child_that_comes_while_it_lists_is_seen_by_the_next_look(
    session: Session, other: Session
) -> None:
    make(other, "/tops/a", b"1")
    kept = Kept(session)
    kept.mirror.invalidate()
    kept.woken.clear()

    def come() -> None:
        for at in ("b", "c"):
            make(other, f"/tops/{at}", b"2")
            make(other, f"/jobs/{at}", b"2")

    with after_first(session._client, "get_children_async", come):
        kept.mirror.refresh()
    kept.becomes(kept.tops, {"/tops/a": 1, "/tops/b": 2, "/tops/c": 2}, "those that came then")


def test_what_happens_while_it_has_no_session_is_there_afterwards(
    session: Session, other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(other, "/tops/a", b"1")
    make(other, "/tops/gone", b"1")
    make(other, "/jobs/j", b"spec")
    make(other, "/jobs/j/state", b"s")
    kept = Kept(session)
    expire(session)
    put(other, "/jobs/j/state", b"t")  # nobody watches it
    put(other, "/tops/a", b"2")
    remove(other, "/tops/gone")
    asked = requests(session, monkeypatch)
    kept.woken.set()
    kept.becomes(kept.tops, {"/tops/a": 2}, "what others did meanwhile")
    assert asked["sync"] == 1, "no older than the first look in the new session"
    assert kept.jobs.values["/jobs/j"].state == b"t"
    put(other, "/tops/a", b"3")
    kept.becomes(kept.tops, {"/tops/a": 3}, "and it is woken in the new session")


def test_a_connection_lost_in_the_middle_of_a_look_loses_nothing(
    through: Session, proxy: CuttingProxy, other: Session
) -> None:
    for at in range(5):
        make(other, f"/tops/{at}", b"1")
        make(other, f"/tops/{at}/below/x", b"1")
    kept = Kept(through)
    for at in range(5):
        put(other, f"/tops/{at}/below/x", b"2")
    eventually(kept.woken.is_set, "it is woken")
    proxy.cut_the_next(protocol.GET_DATA)
    wanted = {f"/tops/{at}/below/x": 2 for at in range(5)}
    kept.becomes(kept.leaves, wanted, "all of them, over the next connection")
    assert proxy.cuts == 1
    put(other, "/tops/3/below/x", b"3")
    kept.becomes(kept.leaves, {**wanted, "/tops/3/below/x": 3}, "and it is woken over that one")


def test_a_plane_that_comes_back_empty_leaves_nothing(
    through: Session, proxy: CuttingProxy, other: Session
) -> None:
    make(other, "/tops/a", b"1")
    make(other, "/tops/a/below/x", b"1")
    make(other, "/fixed", b"1")
    kept = Kept(through)
    assert kept.fixed.values == {"/fixed": 1}
    proxy.go_dark()
    eventually(lambda: not through.connected, "it is cut off")
    remove(other, "/tops")
    remove(other, "/fixed")
    assert kept.fixed.values == {"/fixed": 1}, "what was read last stays"
    assert not kept.mirror.caught_up
    proxy.light_up()
    kept.becomes(kept.leaves, {}, "nothing is left below")
    kept.becomes(kept.fixed, {}, "nothing is left of the fixed one")
    assert kept.tops.values == {}
    make(other, "/tops/b", b"2")
    kept.becomes(kept.tops, {"/tops/b": 2}, "what comes then is seen")


def test_what_is_gone_or_not_followed_any_more_leaves_no_watch(
    session: Session, other: Session
) -> None:
    kept = Kept(session)
    make(other, "/other", b"1")
    at_rest = session.nodes.waiting
    for at in range(10):
        make(other, f"/tops/{at}", b"1")  # nothing below it: three watches for what is not there
        make(other, f"/tops/{at}/below", b"")
        make(other, f"/tops/{at}/below/x", b"1")
    kept.becomes(kept.leaves, {f"/tops/{at}/below/x": 1 for at in range(10)}, "they come")
    kept.mirror.follow(kept.asked, ["/other", "/none"])
    kept.mirror.refresh()
    assert kept.asked.values == {"/other": 1}
    assert session.nodes.waiting > at_rest + 20
    remove(other, "/tops")
    make(other, "/tops")
    kept.becomes(kept.tops, {}, "they go")
    kept.becomes(kept.leaves, {}, "with those below")
    kept.mirror.follow(kept.asked, [])
    assert kept.asked.values == {}

    def settled() -> bool:
        kept.mirror.refresh()
        return session.nodes.waiting == at_rest

    eventually(settled, f"as many wait as at rest, {at_rest}, not {session.nodes.waiting}")
    kept.mirror.close()
    assert session.nodes.waiting == 0


def test_more_nodes_than_the_bound_are_an_error_until_some_are_gone(
    session: Session, other: Session
) -> None:
    kept = Kept(session, nodes_max=8)
    for at in range(8):
        make(other, f"/tops/{at}", b"1")

    eventually(lambda: _raises(kept.mirror.refresh), "it refuses")
    with pytest.raises(TerminalError, match="at most 8 nodes"):
        kept.mirror.refresh()  # and again, however often it is asked
    for at in range(6):
        remove(other, f"/tops/{at}")
    eventually(lambda: not _raises(kept.mirror.refresh), "it goes on")
    kept.woken.set()
    kept.becomes(kept.tops, {"/tops/6": 1, "/tops/7": 1}, "what is left is read")


def test_more_bytes_than_the_bound_are_an_error_until_some_are_gone(
    session: Session, other: Session
) -> None:
    kept = Kept(session, bytes_max=100)
    make(other, "/tops/a", b"1" * 60)
    make(other, "/tops/b", b"1" * 60)
    eventually(lambda: _raises(kept.mirror.refresh), "it refuses")
    assert len(kept.tops.values) == 1
    remove(other, "/tops/a")
    kept.woken.set()
    eventually(lambda: not _raises(kept.mirror.refresh), "it goes on")
    kept.woken.set()
    kept.becomes(kept.tops, {"/tops/b": int("1" * 60)}, "what is left is read")


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except TerminalError as error:
        assert error.fix
        return True
    return False


def test_a_value_that_is_not_understood_is_named_and_keeps_no_other_from_its_change(
    session: Session, other: Session
) -> None:
    make(other, "/fixed", b"1")
    make(other, "/tops/a", b"1")
    make(other, "/tops/b", b"1")
    make(other, "/jobs/half", b"it has no state")
    kept = Kept(session)
    assert list(kept.jobs.unreadable) == ["/jobs/half"]
    put(other, "/tops/a", b"what")
    put(other, "/fixed", b"what")
    put(other, "/tops/b", b"2")
    kept.becomes(kept.tops, {"/tops/b": 2}, "the other one is read")
    eventually(lambda: kept.mirror.refresh() is not None and kept.fixed.unreadable, "both")
    assert "/tops/a" in str(kept.tops.unreadable["/tops/a"])
    assert kept.fixed.values == {"/fixed": 1}, "the last one of this kind counts"
    put(other, "/tops/a", b"3")
    kept.becomes(kept.tops, {"/tops/a": 3, "/tops/b": 2}, "it is mended")
    assert kept.tops.unreadable == {}


def test_nodes_read_around_a_change_of_several_are_read_again_before_they_are_called_unreadable(
    session: Session, other: Session
) -> None:
    make(other, "/jobs/j", b"spec")
    kept = Kept(session)
    assert set(kept.jobs.unreadable) == {"/jobs/j"}
    kept.mirror.invalidate("/jobs/j")

    def state() -> None:
        make(other, "/jobs/j/state", b"s")
        session.nodes.read("/jobs/j/state", fresh=True)

    plain = session.nodes.read_all
    calls: list[bool] = []

    def read_all(*given: Any, **named: Any) -> Any:
        found = plain(*given, **named)
        if not calls:
            calls.append(True)
            state()
        return found

    session.nodes.read_all = read_all  # type: ignore[method-assign]
    kept.mirror.refresh()
    assert kept.jobs.unreadable == {}
    assert kept.jobs.values["/jobs/j"].state == b"s"
