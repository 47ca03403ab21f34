"""`settled`: of every change up to its zxid, the wakes have been called."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.coordination import Election, Facts, Mirror, Mirrored, Session, single

Sessions = Callable[..., Session]


def test_what_was_written_before_is_woken_and_read_and_has_a_zxid_that_is_not_greater(
    session: Session, another: Sessions
) -> None:
    writer, facts = Facts(another(8)), Facts(session)
    writer.transaction(lambda: True).create("/settled/0", b"0").commit()
    kept = Mirrored("/settled/*", single(lambda path, data: int(data)))
    mirror = Mirror(session, kept)
    mirror.refresh()
    before = session.nodes.settled()
    for number in range(1, 60):
        path = f"/settled/{number % 7}"
        change = writer.transaction(lambda: True)
        if number < 7:
            change.create(path, str(number).encode()).commit()
        else:
            change.replace(path, str(number).encode()).commit()
        zxid = session.nodes.settled()
        mirror.refresh()
        fact = facts.read(path, fresh=True)
        assert fact is not None
        assert before < fact.zxid <= zxid, "it is older than its call"
        assert kept.values[path] == number, "a change up to the zxid was not told"
        before = zxid


def test_a_leader_knows_the_zxid_of_what_it_wrote(session: Session, another: Sessions) -> None:
    facts = Facts(session)
    with Election(another(8), "/lead").campaign() as leadership:
        for number in range(3):
            zxid = leadership.transaction().create(f"/led/{number}", b"").commit()
            fact = facts.read(f"/led/{number}", fresh=True)
            assert fact is not None
            assert fact.zxid == zxid
