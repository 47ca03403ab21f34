"""What holds for the tree whatever is asked of it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from holdfast.coordination.embedded import protocol as p
from holdfast.coordination.embedded.transactions import (
    ACL,
    AuthIdentity,
    CheckVersion,
    CloseSession,
    Create,
    Created,
    Delete,
    DeleteContainer,
    FailedOperation,
    Multi,
    OpenSession,
    Operation,
    Outcome,
    Reject,
    SetACL,
    SetData,
    WriteTransaction,
)
from holdfast.coordination.embedded.tree import ROW_NODE, Tree
from holdfast.wire.errors import BugError
from tests.unit.embedded.tree_driver import EVA, LOCAL, OPEN, Driver, create

SESSIONS = (0x11, 0x22, -0x33)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

paths = st.one_of(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(
        lambda names: "/" + "/".join(names)
    ),
    st.sampled_from(["/", "", "/a/", "/a/n-0000000000", "/zookeeper/quota", "/zookeeper", "//"]),
)
data = st.one_of(st.none(), st.binary(max_size=4))
versions = st.sampled_from([-1, -1, -1, 0, 1, 2])
acls = st.sampled_from(
    [
        OPEN,
        OPEN,
        OPEN,
        None,
        (),
        (ACL(p.PERM_ALL, "auth", ""),),
        (ACL(p.PERM_ALL, "digest", EVA.id), ACL(p.PERM_READ, "world", "anyone")),
        (ACL(p.PERM_ALL & ~p.PERM_DELETE, "ip", "127.0.0.0/8"),),
    ]
)


@st.composite
def creates(draw: st.DrawFn) -> Create:
    flags = draw(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 5, 6, 7]))
    ttl_ms = draw(st.sampled_from([0, 1, 50])) if flags in (5, 6) else -1
    return Create(draw(paths), draw(data), draw(acls), flags, ttl_ms, draw(st.booleans()))


deletes = st.builds(Delete, paths, versions)
sets = st.builds(SetData, paths, data, versions)
checks = st.builds(CheckVersion, paths, versions)
parts = st.one_of(creates(), deletes, sets, checks)
multis = st.builds(Multi, st.lists(parts, max_size=5).map(tuple))
operations: st.SearchStrategy[Operation] = st.one_of(
    creates(),
    creates(),
    deletes,
    sets,
    st.builds(SetACL, paths, acls, versions),
    checks,
    multis,
    multis,
    st.builds(DeleteContainer, paths),
    st.just(Reject(p.MARSHALLING_ERROR)),
)


def failed(outcome: Outcome) -> bool:
    return bool(outcome.error) or any(isinstance(one, FailedOperation) for one in outcome.results)


class TreeMachine(RuleBasedStateMachine):
    """Two trees get the same; one of them is now and then replaced by a copy from its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tree, self.twin = Tree(nodes_max=12), Tree(nodes_max=12)
        self.now_ms = 1_000

    @initialize()
    def open_all(self) -> None:
        for session in SESSIONS:
            self.apply(session, OpenSession(4_000))

    def apply(self, session: int, operation: Operation, *more: AuthIdentity) -> None:
        zxid = self.tree.last_zxid + 1
        self.now_ms += 7
        transaction = WriteTransaction(session, (LOCAL, *more), operation)
        before = list(self.tree.rows())
        outcome = self.tree.apply(transaction, zxid, self.now_ms)
        assert outcome == self.twin.apply(transaction, zxid, self.now_ms)
        assert self.tree.last_zxid == zxid
        if failed(outcome):
            assert outcome.events == ()
            unchanged = Tree.from_rows(before, zxid, nodes_max=12)
            assert unchanged.digest() == self.tree.digest()

    @rule(session=st.sampled_from(SESSIONS), operation=operations, eva=st.booleans())
    def write(self, session: int, operation: Operation, eva: bool) -> None:
        self.apply(session, operation, *((EVA,) if eva else ()))

    @rule(session=st.sampled_from(SESSIONS))
    def reopen(self, session: int) -> None:
        self.apply(session, CloseSession())
        assert self.tree.ephemerals_of(session) == []
        self.apply(session, OpenSession(8_000))

    @rule()
    def sweep(self) -> None:
        for path in self.tree.due_containers(self.now_ms):
            self.apply(0, DeleteContainer(path))
            assert self.tree.find(path) is None

    @rule()
    def restart(self) -> None:
        rows = list(self.tree.rows())
        self.tree = Tree.from_rows(rows, self.tree.last_zxid, nodes_max=12)
        assert list(self.tree.rows()) == rows

    @invariant()
    def holds(self) -> None:
        self.tree.validate()
        assert self.tree.digest() == self.twin.digest()
        assert self.tree.node_count <= 12


TestTreeMachine = TreeMachine.TestCase
TestTreeMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.one_of(
        st.builds(
            Create,
            st.text(),
            data,
            st.lists(st.builds(ACL, INT32, st.text(), st.text()), max_size=3).map(tuple),
            INT32,
            INT64,
            st.booleans(),
        ),
        st.builds(Delete, st.text(), INT32),
        st.builds(SetData, st.text(), data, INT32),
        st.builds(CheckVersion, st.text(), INT32),
        st.builds(SetACL, st.text(), st.just(OPEN), INT32),
        st.builds(DeleteContainer, st.text()),
    )
)
def test_whatever_a_client_sends_is_answered(operation: Operation) -> None:
    driver = Driver()
    outcome = driver.outcome(operation)
    driver.tree.validate()
    for result in outcome.results:
        if isinstance(result, Created):
            assert driver.tree.find(result.path) is not None


DAMAGES = [
    "del tree.nodes['/a']",
    "tree.nodes['/a'].children['ghost'] = None",
    "tree.nodes['/box'].children = {}",
    "tree.nodes['/box'].mzxid = 0",
    "tree.nodes['/a'].pzxid = tree.last_zxid + 1",
    "tree.nodes['/a'].creates = 0",
    "tree.nodes['/a'].owner = 0x7777",
    "tree.nodes['/a/e'].owner = 0",
    "tree.sessions.clear()",
    "tree.ttl_nodes.clear()",
    "tree.idle_containers['/box'] = None",
    "tree.data_bytes += 1",
    "tree.nodes['/a'].acl = ()",
    "tree.undo = []",
    "tree.nodes['/a/../b'] = tree.nodes['/t']",
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_validate_finds_whatever_is_broken(damage: str) -> None:
    driver = Driver()
    driver.make("/a")
    driver.make("/a/e", p.FLAG_EPHEMERAL)
    driver.make("/box", p.FLAG_CONTAINER)
    driver.outcome(create("/t", p.FLAG_TTL, ttl_ms=5))
    driver.tree.validate()
    exec(damage, {"tree": driver.tree})
    with pytest.raises(BugError):
        driver.tree.validate()


def test_rows_that_do_not_fit_together_are_refused() -> None:
    driver = Driver()
    driver.make("/a")
    driver.make("/a/b", p.FLAG_EPHEMERAL)
    rows = list(driver.tree.rows())
    without_session = rows[1:]
    without_parent = [row for row in rows if row[:2] != (ROW_NODE, "/a")]
    without_acl = [row for row in rows if row[0] != 2]
    short = [row[:-1] for row in rows]
    for bad in (without_session, without_parent, without_acl, short):
        with pytest.raises(BugError):
            Tree.from_rows(bad, driver.tree.last_zxid)


def test_nodes_with_the_same_acl_share_one_copy() -> None:
    driver = Driver()
    mine = (ACL(31, "digest", "eva:secret"), ACL(1, "world", "anyone"))
    driver.outcome(create("/a", acl=mine))
    driver.outcome(create("/b", acl=tuple(ACL(*entry) for entry in mine)))
    assert driver.tree.exists("/a").acl is driver.tree.exists("/b").acl
    loaded = Tree.from_rows(driver.tree.rows(), driver.tree.last_zxid)
    assert loaded.exists("/a").acl is loaded.exists("/b").acl
