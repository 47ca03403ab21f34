"""What the tree answers, as a real ZooKeeper 3.8.0 was seen to answer it."""

from __future__ import annotations

import pytest

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.transactions import (
    ACL,
    Changed,
    CheckVersion,
    CloseSession,
    Created,
    Delete,
    DeleteContainer,
    Multi,
    OpenSession,
    Reject,
    SetACL,
    SetData,
    Stat,
    WriteTransaction,
)
from holdfast.coordination.embedded.tree import OperationError, Tree
from holdfast.wire.errors import BugError
from tests.unit.embedded.tree_driver import EVA, LOCAL, OPEN, Driver, create

READ_ONLY = (ACL(p.PERM_READ, "world", "anyone"),)


def test_a_fresh_tree_shows_what_a_fresh_zookeeper_shows() -> None:
    tree = Tree()
    assert tree.exists("/").stat() == Stat(0, 0, 0, 0, 0, -1, 0, 0, 0, 1, 0)
    assert tree.exists("/zookeeper").stat() == Stat(0, 0, 0, 0, 0, -2, 0, 0, 0, 2, 0)
    assert tree.exists("/zookeeper/config").stat() == Stat(0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0)
    assert tree.get_acl("/zookeeper/config", ())[0] == READ_ONLY
    assert sorted(tree.get_children("/zookeeper", ()).child_names()) == ["config", "quota"]
    assert tree.all_children_number("/", ()) == 3
    assert tree.find("") is tree.find("/")
    tree.validate()


def test_a_created_node_has_the_numbers_of_its_transaction() -> None:
    driver = Driver()
    outcome = driver.outcome(create("/a", data=b"xyz"))
    stat = Stat(2, 2, 20, 20, 0, 0, 0, 0, 3, 0, 2)
    assert outcome.results == (Created("/a", stat),)
    assert driver.stat("/") == Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2)
    assert driver.tree.exists("/a").packed_stat()[-8:] == (2).to_bytes(8, "big")


def test_sequence_numbers_count_creates_and_do_not_go_back_after_deletes() -> None:
    driver = Driver()
    driver.make("/q")
    assert driver.make("/q/n-", p.FLAG_SEQUENTIAL) == "/q/n-0000000000"
    assert driver.make("/q/plain") == "/q/plain"
    driver.outcome(Delete("/q/plain", -1))
    assert driver.make("/q/", p.FLAG_EPHEMERAL_SEQUENTIAL) == "/q/0000000002"
    assert (driver.stat("/q").cversion, driver.stat("/q").num_children) == (4, 2)


def test_a_delete_moves_the_parents_pzxid_and_cversion_and_a_set_does_not() -> None:
    driver = Driver()
    driver.make("/a")
    driver.make("/a/b")
    before = driver.stat("/a")
    driver.outcome(SetData("/a/b", b"new", -1))
    assert driver.stat("/a") == before
    driver.outcome(Delete("/a/b", 1))
    after = driver.stat("/a")
    assert (after.cversion, after.pzxid) == (before.cversion + 1, driver.tree.last_zxid)


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (create("/new", flags=p.FLAG_UNKNOWN), p.BAD_ARGUMENTS),
        (create("/new", flags=8), p.BAD_ARGUMENTS),
        (create("/new", flags=-1), p.BAD_ARGUMENTS),
        (create("/new", p.FLAG_TTL, ttl_ms=0), p.BAD_ARGUMENTS),
        (create("/new", p.FLAG_TTL, ttl_ms=1 << 40), p.BAD_ARGUMENTS),
        (create("/new", p.FLAG_TTL, ttl_ms=(1 << 40) - 1), p.OK),
        (create("/new", ttl_ms=5), p.BAD_ARGUMENTS),
        (create("no-slash", acl=()), p.BAD_ARGUMENTS),
        (create("/nul\0", acl=()), p.BAD_ARGUMENTS),
        (create("/missing/x", acl=()), p.INVALID_ACL),
        (create("/missing/.."), p.NO_NODE),
        (create("/closed/.."), p.NO_AUTH),
        (create("/open/.."), p.BAD_ARGUMENTS),
        (create("/open/"), p.BAD_ARGUMENTS),
        (create("//"), p.BAD_ARGUMENTS),
        (create("/"), p.NODE_EXISTS),
        (create("/zookeeper"), p.NODE_EXISTS),
        (create("/mine/x"), p.NO_CHILDREN_FOR_EPHEMERALS),
        (Delete("/", -1), p.BAD_ARGUMENTS),
        (Delete("/zookeeper/quota", -1), p.BAD_ARGUMENTS),
        (Delete("no-slash", -1), p.BAD_ARGUMENTS),
        (Delete("", -1), p.BAD_ARGUMENTS),
        (Delete("//", -1), p.NO_NODE),
        (Delete("/open/..", -1), p.NO_NODE),
        (Delete("/closed/none", -1), p.NO_AUTH),
        (Delete("/open", 7), p.BAD_VERSION),
        (Delete("/open", 0), p.NOT_EMPTY),
        (SetData("/open/", b"", -1), p.BAD_ARGUMENTS),
        (SetData("", b"", -1), p.BAD_ARGUMENTS),
        (SetData("/closed", b"", 7), p.NO_AUTH),
        (SetData("/open", b"", -2), p.BAD_VERSION),
        (SetData("/zookeeper/config", b"", -1), p.NO_AUTH),
        (SetACL("/missing", (), -1), p.INVALID_ACL),
        (SetACL("/open/..", (), -1), p.BAD_ARGUMENTS),
        (SetACL("/closed", OPEN, 7), p.NO_AUTH),
        (SetACL("/open", OPEN, 7), p.BAD_VERSION),
        (CheckVersion("/open", 0), p.OK),
        (CheckVersion("/open", 3), p.BAD_VERSION),
        (CheckVersion("relative", 0), p.BAD_ARGUMENTS),
        (CheckVersion("/secret", 0), p.NO_AUTH),
        (Reject(p.MARSHALLING_ERROR), p.MARSHALLING_ERROR),
    ],
)
def test_the_refusal_that_wins_is_zookeepers(operation: object, code: int) -> None:
    driver = Driver()
    driver.make("/open")
    driver.make("/open/child")
    driver.outcome(create("/closed", acl=READ_ONLY))
    driver.outcome(create("/secret", acl=(ACL(p.PERM_ALL, "digest", "eva:secret"),)))
    driver.make("/mine", p.FLAG_EPHEMERAL)
    assert driver.error(operation) == code  # type: ignore[arg-type]


def test_a_write_of_a_session_that_is_not_open_is_refused_after_the_flags_are_looked_at() -> None:
    driver = Driver()
    driver.make("/a")
    for operation in (
        create("bad path"),
        Delete("bad", -1),
        SetData("", b"", -1),
        CheckVersion("", 0),
    ):
        assert driver.outcome(operation, 0xDEAD).error == p.SESSION_EXPIRED
    assert driver.outcome(SetACL("", OPEN, -1), 0xDEAD).error == p.SESSION_EXPIRED
    assert driver.outcome(create("/x", flags=9), 0xDEAD).error == p.BAD_ARGUMENTS


def test_permissions_are_asked_of_the_parent_for_create_and_delete_and_of_the_node_otherwise() -> (
    None
):
    driver = Driver()
    own = (ACL(p.PERM_ALL, "digest", "eva:secret"), ACL(p.PERM_READ, "world", "anyone"))
    driver.outcome(create("/eva", acl=own))
    driver.outcome(create("/eva/x"), driver.session, EVA)
    assert driver.error(Delete("/eva/x", -1)) == p.NO_AUTH
    assert driver.error(SetData("/eva/x", b"anyone", -1)) == p.OK
    assert driver.error(SetACL("/eva", OPEN, -1)) == p.NO_AUTH
    assert driver.error(Delete("/eva/x", -1), EVA) == p.OK
    assert driver.error(Delete("/eva", -1)) == p.OK


def test_set_acl_counts_only_the_aversion() -> None:
    driver = Driver()
    driver.make("/a")
    before = driver.stat("/a")
    (result,) = driver.outcome(SetACL("/a", READ_ONLY, 0)).results
    assert result == Changed(before._replace(aversion=1))
    assert driver.outcome(SetACL("/a", OPEN, -1)).error == p.NO_AUTH


def test_get_acl_masks_digests_for_those_without_admin() -> None:
    driver = Driver()
    acl = (ACL(p.PERM_ALL, "digest", "eva:secret"), ACL(p.PERM_READ, "world", "anyone"))
    driver.outcome(create("/a", acl=acl))
    assert driver.tree.get_acl("/a", (LOCAL, EVA))[0] == acl
    assert driver.tree.get_acl("/a", (LOCAL,))[0][0].id == "eva:x"
    driver.outcome(create("/b", acl=acl[:1]))
    with pytest.raises(OperationError) as refusal:
        driver.tree.get_acl("/b", (LOCAL,))
    assert refusal.value.code == p.NO_AUTH


def test_the_acl_is_shown_to_those_who_read_or_administer_and_set_by_those_who_administer() -> None:
    driver = Driver()
    admin = (ACL(p.PERM_ADMIN, "world", "anyone"),)
    driver.outcome(create("/admin", acl=admin))
    assert driver.tree.get_acl("/admin", ())[0] == admin
    driver.outcome(create("/others", acl=(ACL(p.PERM_ALL & ~p.PERM_ADMIN, "world", "anyone"),)))
    assert driver.error(SetACL("/others", OPEN, -1)) == p.NO_AUTH
    assert driver.error(SetACL("/admin", OPEN, -1)) == p.OK


def test_null_data_stays_null_and_counts_no_bytes() -> None:
    driver = Driver()
    driver.outcome(create("/a", data=None))
    assert driver.tree.get_data("/a", ()).data is None
    assert driver.stat("/a").data_length == 0


def test_a_version_wraps_as_a_java_number_does() -> None:
    driver = Driver()
    driver.make("/a")
    driver.tree.exists("/a").version = 0x7FFFFFFF
    (result,) = driver.outcome(SetData("/a", b"", -1)).results
    assert isinstance(result, Changed)
    assert result.stat.version == -0x80000000


# --- multi ------------------------------------------------------------------------------------


def test_a_multi_happens_whole_and_each_part_sees_those_before_it() -> None:
    driver = Driver()
    outcome = driver.outcome(
        Multi((create("/a"), create("/a/b"), SetData("/a", b"12", 0), CheckVersion("/a", 1)))
    )
    zxid = driver.tree.last_zxid
    assert outcome.results[2] == Changed(
        Stat(zxid, zxid, 10 * zxid, 10 * zxid, 1, 1, 0, 0, 2, 1, zxid)
    )
    assert [(event.type, event.path) for event in outcome.events] == [
        (p.EVENT_CREATED, "/a"),
        (p.EVENT_CHILDREN_CHANGED, "/"),
        (p.EVENT_CREATED, "/a/b"),
        (p.EVENT_CHILDREN_CHANGED, "/a"),
        (p.EVENT_DATA_CHANGED, "/a"),
    ]


def test_a_failed_multi_leaves_no_trace_and_names_its_culprit() -> None:
    driver = Driver()
    driver.make("/q")
    driver.make("/q/old", p.FLAG_EPHEMERAL)
    driver.outcome(create("/box", p.FLAG_CONTAINER))
    driver.make("/box/item")
    rows = list(driver.tree.rows())
    codes = driver.codes(
        create("/q/n-", p.FLAG_EPHEMERAL_SEQUENTIAL),
        SetData("/q", b"changed", -1),
        Delete("/q/old", -1),
        Delete("/box/item", -1),
        Delete("/box", -1),
        CheckVersion("/q", 99),
        create("/never"),
    )
    assert codes == [0, 0, 0, 0, 0, p.BAD_VERSION, p.RUNTIME_INCONSISTENCY]
    driver.tree.validate()
    before = Tree.from_rows(rows, driver.tree.last_zxid)
    assert driver.tree.digest() == before.digest()
    assert driver.make("/q/n-", p.FLAG_SEQUENTIAL) == "/q/n-0000000001"


def test_a_failed_multi_answers_with_no_error_in_the_header_and_no_events() -> None:
    driver = Driver()
    outcome = driver.outcome(Multi((create("/a"), Delete("/missing", -1))))
    assert (outcome.error, outcome.events) == (p.OK, ())
    assert driver.outcome(Multi(())).results == ()


# --- sessions ---------------------------------------------------------------------------------


def test_closing_a_session_deletes_its_ephemerals_in_one_transaction() -> None:
    driver = Driver()
    other = driver.open()
    driver.make("/keep")
    driver.make("/mine", p.FLAG_EPHEMERAL, other)
    assert driver.stat("/mine").ephemeral_owner == other
    assert driver.events(CloseSession(), other) == [
        (p.EVENT_DELETED, "/mine"),
        (p.EVENT_CHILDREN_CHANGED, "/"),
    ]
    assert driver.tree.find("/mine") is None
    assert driver.stat("/").pzxid == driver.tree.last_zxid
    assert other not in driver.tree.sessions
    assert driver.close(other).error == p.OK
    driver.tree.validate()


def test_opening_a_session_again_keeps_what_it_owns() -> None:
    driver = Driver()
    driver.make("/mine", p.FLAG_EPHEMERAL)
    driver.outcome(OpenSession(9_000))
    assert driver.tree.sessions[driver.session].timeout_ms == 9_000
    assert driver.tree.ephemerals_of(driver.session) == ["/mine"]


def test_get_ephemerals_filters_by_prefix_and_takes_blanks_for_all() -> None:
    driver = Driver()
    driver.make("/a", p.FLAG_EPHEMERAL)
    driver.make("/b", p.FLAG_EPHEMERAL)
    assert driver.tree.get_ephemerals(driver.session, "/a") == ["/a"]
    for every in ("", "/", " /\0"):
        assert sorted(driver.tree.get_ephemerals(driver.session, every)) == ["/a", "/b"]
    assert driver.tree.get_ephemerals(0xDEAD, "/") == []


# --- containers, TTLs, limits -----------------------------------------------------------------


def test_a_container_is_due_only_when_it_had_a_child_and_is_empty_again() -> None:
    driver = Driver()
    driver.make("/box", p.FLAG_CONTAINER)
    assert driver.stat("/box").ephemeral_owner == 0
    assert driver.tree.due_containers(10**9) == []
    assert driver.error(DeleteContainer("/box")) == p.BAD_VERSION
    driver.make("/box/item", p.FLAG_EPHEMERAL)
    assert driver.error(DeleteContainer("/box")) == p.NOT_EMPTY
    driver.close()
    assert driver.tree.due_containers(0) == ["/box"]
    assert driver.error(DeleteContainer("/box")) == p.OK
    assert driver.tree.due_containers(0) == []
    assert driver.error(DeleteContainer("/box")) == p.NO_NODE


def test_a_container_that_is_filled_again_is_not_due_and_a_failed_multi_changes_nothing() -> None:
    driver = Driver()
    driver.make("/box", p.FLAG_CONTAINER)
    driver.make("/box/item")
    driver.outcome(Delete("/box/item", -1))
    driver.codes(Delete("/box", -1), CheckVersion("/missing", 0))
    assert driver.tree.due_containers(0) == ["/box"]
    driver.codes(create("/box/item"), CheckVersion("/missing", 0))
    assert driver.tree.due_containers(0) == ["/box"]
    driver.make("/box/item")
    assert driver.tree.due_containers(0) == []
    driver.codes(Delete("/box/item", -1), CheckVersion("/missing", 0))
    assert driver.tree.due_containers(0) == []
    driver.tree.validate()


def test_a_ttl_node_is_due_when_its_time_has_passed_and_it_is_empty() -> None:
    driver = Driver()
    driver.outcome(create("/t", p.FLAG_TTL, ttl_ms=100))
    made_ms = driver.stat("/t").mtime
    assert driver.stat("/t").ephemeral_owner == 0
    assert driver.tree.due_containers(made_ms + 100) == []
    assert driver.tree.due_containers(made_ms + 101) == ["/t"]
    assert driver.error(DeleteContainer("/t")) == p.BAD_VERSION
    driver.make("/t/child")
    assert driver.tree.due_containers(made_ms + 101) == []
    for path in ("/", "/zookeeper", "relative", ""):
        assert driver.error(DeleteContainer(path)) in (p.NOT_EMPTY, p.NO_NODE)


def test_creates_beyond_the_limit_of_nodes_are_refused_and_deletes_make_room() -> None:
    driver = Driver(nodes_max=6)
    driver.make("/a")
    driver.make("/b")
    assert driver.error(create("/c")) == p.QUOTA_EXCEEDED
    assert driver.error(create("/a")) == p.NODE_EXISTS
    assert driver.codes(Delete("/a", -1), create("/c"), create("/d")) == [0, 0, p.QUOTA_EXCEEDED]
    assert driver.codes(Delete("/a", -1), create("/c")) == [0, 0]


def test_a_zxid_that_does_not_grow_is_a_bug() -> None:
    driver = Driver()
    transaction = WriteTransaction(driver.session, (), Delete("/x", -1))
    with pytest.raises(BugError):
        driver.tree.apply(transaction, driver.tree.last_zxid, 0)


def test_counts_follow_what_the_tree_holds() -> None:
    driver = Driver()
    nodes, size = driver.tree.node_count, driver.tree.data_bytes
    driver.outcome(create("/abc", p.FLAG_EPHEMERAL, data=b"12345"))
    assert (driver.tree.node_count, driver.tree.ephemeral_count) == (nodes + 1, 1)
    assert driver.tree.data_bytes == size + 9
    driver.outcome(SetData("/abc", b"1", -1))
    assert driver.tree.data_bytes == size + 5
    driver.close()
    assert (driver.tree.node_count, driver.tree.data_bytes) == (nodes, size)
    assert driver.tree.ephemeral_count == 0
