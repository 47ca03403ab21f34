"""Consumer groups: how members agree, what they are told, who is out."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.topics.broker.core.commands import SavedGroup
from holdfast.topics.broker.core.group import Effects, GroupAnswer, GroupStage, JoiningClient, Save
from holdfast.topics.broker.core.groups import GroupTable
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import (
    Assignment,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    SyncGroupRequest,
)

SESSION_MS = 10_000
REBALANCE_MS = 30_000


class World:
    """A table of groups, a clock, and what everybody was answered."""

    def __init__(self, *, initial_delay_ms: int = 0) -> None:
        self.groups = GroupTable({}, 0, initial_delay_ms=initial_delay_ms)
        self.now_ms = 0
        self.answers: dict[Any, Any] = {}
        self.saved: dict[str, SavedGroup] = {}
        self.disk_works = True
        self._ids = 0

    def follow(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, GroupAnswer):
                self.answers[effect.token] = effect.response
            else:
                self._save(effect)

    def _save(self, save: Save) -> None:
        if self.disk_works:
            self.saved[save.group] = save.saved
            self.follow(self.groups.saved(save, self.now_ms))
        else:
            self.follow(self.groups.not_saved(save, self.now_ms))

    def join(
        self,
        token: str,
        member: str = "",
        *,
        instance: str | None = None,
        protocols: tuple[str, ...] = ("range",),
        metadata: bytes = b"m",
        known_id: bool = True,
        kind: str = "consumer",
    ) -> Any:
        self._ids += 1
        asked = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=member,
            group_instance_id=instance,
            protocol_type=kind,
            protocols=[JoinProtocol(name=name, metadata=metadata) for name in protocols],
        )
        caller = JoiningClient("client", "host", f"id-{self._ids}", needs_known_id=known_id)
        self.answers.pop(token, None)
        self.follow(self.groups.join(asked, caller, token, self.now_ms))
        return self.answers.get(token)

    def enter(self, token: str, **given: Any) -> str:
        """Join as a new client does: the first answer is an id. The id."""
        first = self.join(token, **given)
        assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.join(token, first.member_id, **given)
        return str(first.member_id)

    def sync(
        self, token: str, member: str, generation: int, given: dict[str, bytes] | None = None
    ) -> Any:
        asked = SyncGroupRequest(
            group_id="g",
            generation_id=generation,
            member_id=member,
            assignments=[
                Assignment(member_id=one, assignment=data) for one, data in (given or {}).items()
            ],
        )
        self.answers.pop(token, None)
        self.follow(self.groups.sync(asked, token, self.now_ms))
        return self.answers.get(token)

    def beat(self, member: str, generation: int, instance: str | None = None) -> ErrorCode:
        asked = HeartbeatRequest(
            group_id="g", generation_id=generation, member_id=member, group_instance_id=instance
        )
        return self.groups.heartbeat(asked, self.now_ms)

    def leave(self, member: str, instance: str | None = None) -> ErrorCode:
        code, effects = self.groups.leave("g", member, instance, self.now_ms)
        self.follow(effects)
        return code

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.follow(self.groups.advance(self.now_ms))

    @property
    def stage(self) -> GroupStage:
        return self.groups.by_name["g"].stage


def pair(world: World) -> tuple[str, str]:
    """Two members of a stable group in generation 2; the first one leads."""
    one = world.enter("one")
    world.sync("one", one, 1, {one: b"all"})
    two = world.enter("two")
    world.join("one", one)
    world.sync("two", two, 2)
    world.sync("one", one, 2, {one: b"left", two: b"right"})
    assert world.stage is GroupStage.STABLE
    return one, two


def test_the_first_member_leads_and_gets_what_it_decides() -> None:
    world = World()
    member = world.enter("a")
    joined = world.answers["a"]
    assert (joined.generation_id, joined.leader, joined.protocol_name) == (1, member, "range")
    assert [one.member_id for one in joined.members] == [member]
    assert world.sync("a", member, 1, {member: b"mine"}).assignment == b"mine"
    assert world.saved["g"].members[0].assignment == b"mine"


def test_a_second_member_makes_everybody_join_again() -> None:
    world = World()
    one, two = pair(world)
    assert world.answers["one"].assignment == b"left"
    assert world.answers["two"].assignment == b"right"
    assert world.beat(one, 2) is ErrorCode.NONE
    assert world.beat(two, 1) is ErrorCode.ILLEGAL_GENERATION
    assert world.beat("nobody", 2) is ErrorCode.UNKNOWN_MEMBER_ID


def test_while_a_rebalance_is_prepared_members_are_told_so() -> None:
    world = World()
    one, two = pair(world)
    three = world.enter("three")
    assert "three" not in world.answers
    assert world.beat(one, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.sync("one", one, 2).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    world.join("one", one)
    world.join("two", two)
    assert {world.answers[who].generation_id for who in ("one", "two", "three")} == {3}
    assert three in world.groups.by_name["g"].members


def test_who_does_not_join_again_in_time_is_out() -> None:
    world = World()
    one, two = pair(world)
    world.enter("three")
    world.join("one", one)
    for _ in range(4):
        world.wait(REBALANCE_MS // 4)
        world.beat(two, 2)
    world.wait(1)
    assert two not in world.groups.by_name["g"].members
    assert world.answers["one"].generation_id == 3


def test_a_silent_member_is_out_and_the_others_share_anew() -> None:
    world = World()
    one, two = pair(world)
    world.wait(SESSION_MS - 1)
    world.beat(one, 2)
    world.wait(2)
    assert world.beat(two, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.beat(one, 2) is ErrorCode.REBALANCE_IN_PROGRESS


def test_the_last_one_to_leave_empties_the_group_durably() -> None:
    world = World()
    one, two = pair(world)
    assert world.leave(two) is ErrorCode.NONE
    assert world.leave(one) is ErrorCode.NONE
    assert world.stage is GroupStage.EMPTY
    assert world.saved["g"].members == []
    assert world.saved["g"].generation == 3
    assert world.leave(one) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leader_that_joins_again_makes_a_new_generation_and_a_follower_does_not() -> None:
    world = World()
    one, two = pair(world)
    again = world.join("two", two)
    assert (again.generation_id, again.error_code, again.members) == (2, 0, [])
    assert world.join("one", one) is None
    assert world.stage is GroupStage.PREPARING


def test_a_follower_that_wants_something_else_makes_a_new_generation() -> None:
    world = World()
    _, two = pair(world)
    assert world.join("two", two, metadata=b"other topics") is None
    assert world.stage is GroupStage.PREPARING


def test_the_protocol_is_one_that_all_have() -> None:
    world = World()
    one = world.enter("one", protocols=("sticky", "range"))
    assert world.answers["one"].protocol_name == "sticky"
    world.enter("two", protocols=("range", "sticky"))
    world.join("one", one, protocols=("sticky", "range"))
    assert world.answers["one"].protocol_name in ("sticky", "range")
    refused = world.join("three", protocols=("round-robin",))
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = world.join("three", kind="connect")
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_id_that_was_given_and_never_used_does_not_hold_up_the_others() -> None:
    world = World()
    one = world.enter("one")
    world.sync("one", one, 1, {one: b"all"})
    world.join("ghost")
    two = world.enter("two")
    assert world.join("one", one) is None
    world.wait(SESSION_MS + 1)
    assert world.answers["one"].generation_id == 2
    assert world.answers["two"].member_id == two


def test_assignments_are_sent_only_when_they_are_durable() -> None:
    world = World()
    member = world.enter("a")
    world.disk_works = False
    answer = world.sync("a", member, 1, {member: b"mine"})
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.stage is GroupStage.PREPARING


def test_a_member_that_never_syncs_is_out() -> None:
    world = World()
    one = world.enter("one")
    world.sync("one", one, 1, {one: b"all"})
    two = world.enter("two")
    world.join("one", one)
    world.sync("one", one, 2, {one: b"l", two: b"r"})
    assert world.stage is GroupStage.STABLE
    three = world.enter("three")
    world.join("one", one)
    world.join("two", two)
    world.sync("two", two, 3)
    world.sync("three", three, 3)
    for _ in range(5):
        world.wait(REBALANCE_MS // 5)
        world.beat(one, 3)
        world.beat(two, 3)
        world.beat(three, 3)
    assert one not in world.groups.by_name["g"].members
    assert world.answers["two"].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_session_time_outs_outside_kafkas_bounds_are_refused() -> None:
    world = World()
    asked = JoinGroupRequest(
        group_id="g", session_timeout_ms=5, member_id="", protocol_type="consumer", protocols=[]
    )
    world.follow(world.groups.join(asked, JoiningClient("", "", "x"), "t", 0))
    assert world.answers["t"].error_code == ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_new_group_waits_for_more_members_if_it_is_told_to() -> None:
    world = World(initial_delay_ms=3_000)
    one = world.join("one", known_id=False)
    two = world.join("two", known_id=False)
    assert (one, two) == (None, None)
    world.wait(3_000)
    assert world.answers["one"].generation_id == world.answers["two"].generation_id == 1


# --- static members -------------------------------------------------------------------------------


def static_pair(world: World) -> tuple[str, str]:
    world.join("one", instance="A")
    one = world.answers["one"].member_id
    world.sync("one", one, 1, {one: b"all"})
    world.join("two", instance="B")
    world.join("one", one, instance="A")
    two = world.answers["two"].member_id
    world.sync("one", one, 2, {one: b"left", two: b"right"})
    return one, two


def test_a_static_member_that_comes_back_keeps_what_it_had_without_a_rebalance() -> None:
    world = World()
    _, two = static_pair(world)
    back = world.join("two", instance="B")
    assert (back.error_code, back.generation_id) == (0, 2)
    assert back.member_id != two
    assert world.stage is GroupStage.STABLE
    assert world.sync("two", back.member_id, 2).assignment == b"right"
    assert world.beat(two, 2, "B") is ErrorCode.FENCED_INSTANCE_ID
    assert {one.member_id for one in world.saved["g"].members} >= {back.member_id}


def test_a_static_leader_that_comes_back_assigns_nothing_anew() -> None:
    world = World()
    one, _ = static_pair(world)
    back = world.join("one", instance="A")
    assert (back.leader, back.members) == (one, [])
    assert world.groups.by_name["g"].leader == back.member_id


def test_a_static_member_is_removed_by_its_instance() -> None:
    world = World()
    static_pair(world)
    assert world.leave("", "C") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave("other", "B") is ErrorCode.FENCED_INSTANCE_ID
    assert world.leave("", "B") is ErrorCode.NONE
    assert world.stage is GroupStage.PREPARING


# --- over a restart, and offsets ------------------------------------------------------------------


def test_after_a_restart_members_just_go_on() -> None:
    world = World()
    one, two = pair(world)
    world.groups = GroupTable(world.saved, 500)
    world.now_ms = 500
    assert world.beat(one, 2) is ErrorCode.NONE
    assert world.sync("two", two, 2).assignment == b"right"
    world.wait(SESSION_MS + 1)
    assert world.beat(one, 2) is ErrorCode.UNKNOWN_MEMBER_ID


def refused(world: World, member: str, instance: str | None, generation: int) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        world.groups.check_commit("g", member, instance, generation, world.now_ms)
    return caught.value.code


def test_only_members_of_this_generation_commit() -> None:
    world = World()
    world.groups.check_commit("g", "", None, -1, 0)
    assert refused(world, "m", None, 3) is ErrorCode.ILLEGAL_GENERATION
    one, _ = pair(world)
    world.groups.check_commit("g", one, None, 2, 0)
    assert refused(world, one, None, 1) is ErrorCode.ILLEGAL_GENERATION
    assert refused(world, "stranger", None, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(world, "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.groups.check_commit("g", "", None, -1, 0, in_transaction=True)


def test_a_member_of_a_group_that_only_keeps_offsets_is_unknown() -> None:
    world = World()
    with pytest.raises(KafkaError) as caught:
        world.groups.check_commit("g", "m", None, 3, 0, keeps_offsets=True)
    assert caught.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_comes_again_with_another_protocol_is_refused() -> None:
    world = World()
    one = world.enter("one")
    world.sync("one", one, 1, {one: b"all"})
    world.join("one", one, protocols=("sticky",))
    assert world.answers["one"].error_code is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_what_members_were_given_is_shown_while_others_are_waited_for() -> None:
    world = World()
    pair(world)
    world.enter("three")
    assert world.stage is GroupStage.PREPARING
    shown = world.groups.describe("g", keeps_offsets=False)
    assert {one.member_assignment for one in shown.members} == {b"left", b"right", b""}


def test_a_commit_between_join_and_sync_is_told_to_wait() -> None:
    world = World()
    one = world.enter("one")
    assert refused(world, one, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_group_of_which_nobody_knows_is_dead_and_one_with_offsets_is_empty() -> None:
    world = World()
    assert world.groups.describe("g", keeps_offsets=False).group_state == "Dead"
    assert world.groups.describe("g", keeps_offsets=True).group_state == "Empty"
    pair(world)
    described = world.groups.describe("g", keeps_offsets=False)
    assert (described.group_state, described.protocol_data) == ("Stable", "range")
    assert {one.member_assignment for one in described.members} == {b"left", b"right"}
