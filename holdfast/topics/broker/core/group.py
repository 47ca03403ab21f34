"""One consumer group of the classic protocol: who is in it, and how its members agree.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable, and back when somebody comes,
    leaves, falls silent or changes what it wants

Time is passed in; whoever waits for an answer is a token that nobody here looks into. What a
method returns is what to do: answer somebody, or make the group durable and say so by `saved`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from holdfast.topics.broker.core.commands import SavedGroup, SavedMember
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import (
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# A member that joins for the first time and is never heard again: Kafka gives it five minutes.
NEW_MEMBER_MS: Final = 300_000

Token: TypeAlias = object


class GroupStage(StrEnum):
    """Where a group stands, in Kafka's words."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class GroupAnswer(NamedTuple):
    """Whoever waits with this token is answered."""

    token: Token
    response: JoinGroupResponse | SyncGroupResponse


class Save(NamedTuple):
    """Make this durable, then send these answers and call `saved`; or call `not_saved`."""

    group: str
    saved: SavedGroup
    then: tuple[GroupAnswer, ...] = ()


Effects: TypeAlias = list[GroupAnswer | Save]


class JoiningClient(NamedTuple):
    """Who asks to join: `fresh_id` is the id that it gets if it has none."""

    client_id: str
    host: str
    fresh_id: str
    needs_known_id: bool = True
    can_skip_assignment: bool = False


@dataclass(slots=True)
class GroupMember:
    """Somebody in the group. `deadline_ms`: if nothing is heard of it until then, it is out."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: list[tuple[str, bytes]]
    assignment: bytes = b""
    joining: Token | None = None
    syncing: Token | None = None
    is_new: bool = False
    deadline_ms: int = 0

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def touch(self, now_ms: int) -> None:
        self.deadline_ms = now_ms + self.session_timeout_ms

    def is_silent(self, now_ms: int) -> bool:
        """Whether its time is over. One that waits for us is not silent."""
        waits = not self.is_new and (self.joining is not None or self.syncing is not None)
        return now_ms > self.deadline_ms and not waits


@dataclass(slots=True)
class Group:
    """The members and their generation."""

    name: str
    initial_delay_ms: int = 0
    stage: GroupStage = GroupStage.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, GroupMember] = field(default_factory=dict)
    statics: dict[str, str] = field(default_factory=dict)  # instance -> member
    pending: dict[str, int] = field(default_factory=dict)  # ids given out, until when they count
    unsynced: set[str] = field(default_factory=set)
    deadline_ms: int | None = None  # of the rebalance
    delayed: bool = False  # the first rebalance waits for more members
    emptied_ms: int = 0

    # --- kept over a restart ------------------------------------------------------------------

    @classmethod
    def of(cls, name: str, saved: SavedGroup, now_ms: int) -> Group:
        """A group as it was saved: its members have a fresh time-out."""
        group = cls(name, generation=saved.generation, protocol_type=saved.protocol_type)
        group.protocol, group.leader, group.emptied_ms = saved.protocol, saved.leader, now_ms
        for one in saved.members:
            member = GroupMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.client_host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                one.protocols,
                one.assignment,
            )
            member.touch(now_ms)
            group._add(member)
        group.stage = GroupStage.STABLE if group.members else GroupStage.EMPTY
        return group

    def image(self, assignments: dict[str, bytes] | None = None) -> SavedGroup:
        """What is kept; `assignments` if they are not the members' yet."""
        members = [
            SavedMember(
                one.member_id,
                one.instance_id,
                one.client_id,
                one.host,
                one.session_timeout_ms,
                one.rebalance_timeout_ms,
                one.protocols,
                one.assignment if assignments is None else assignments.get(one.member_id, b""),
            )
            for one in self.members.values()
        ]
        return SavedGroup(self.generation, self.protocol_type, self.protocol, self.leader, members)

    # --- joining ------------------------------------------------------------------------------

    def join(
        self, asked: JoinGroupRequest, caller: JoiningClient, token: Token, now_ms: int
    ) -> Effects:
        """Somebody wants in, or wants a new generation. `KafkaError`: it is refused."""
        self._check_protocols(asked)
        if not asked.member_id:
            return self._join_new(asked, caller, token, now_ms)
        if asked.group_instance_id is not None:
            self._check_static(asked.group_instance_id, asked.member_id)
        if asked.member_id in self.pending:
            return self._add_and_rebalance(asked, caller, asked.member_id, token, now_ms)
        member = self._member(asked.member_id)
        return self._rejoin(member, asked, token, now_ms)

    def _check_protocols(self, asked: JoinGroupRequest) -> None:
        offered = {one.name for one in asked.protocols}
        mismatch = not offered or not asked.protocol_type
        if self.members and asked.protocol_type != self.protocol_type:
            mismatch = True
        for one in self.members.values():  # itself, too: a group does not change protocols so
            offered &= {name for name, _ in one.protocols}
        if mismatch or not offered:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _join_new(
        self, asked: JoinGroupRequest, caller: JoiningClient, token: Token, now_ms: int
    ) -> Effects:
        instance = asked.group_instance_id
        if instance is not None and instance in self.statics:
            return self._replace_static(instance, asked, caller, token, now_ms)
        if instance is None and caller.needs_known_id:
            # It joins again with this id: one that never got the answer leaves nothing behind.
            self.pending[caller.fresh_id] = now_ms + asked.session_timeout_ms
            refusal = _refusal(ErrorCode.MEMBER_ID_REQUIRED, caller.fresh_id)
            return [GroupAnswer(token, refusal)]
        return self._add_and_rebalance(asked, caller, caller.fresh_id, token, now_ms)

    def _add_and_rebalance(
        self,
        asked: JoinGroupRequest,
        caller: JoiningClient,
        member_id: str,
        token: Token,
        now_ms: int,
    ) -> Effects:
        self.pending.pop(member_id, None)
        member = GroupMember(
            member_id, asked.group_instance_id, caller.client_id, caller.host, 0, 0, []
        )
        member.is_new = True
        member.deadline_ms = now_ms + NEW_MEMBER_MS
        self._wants(member, asked, token)
        if not self.members:
            self.protocol_type = asked.protocol_type
        self._add(member)
        return self._rebalance(now_ms)

    def _rejoin(
        self, member: GroupMember, asked: JoinGroupRequest, token: Token, now_ms: int
    ) -> Effects:
        offered = [(one.name, one.metadata) for one in asked.protocols]
        unchanged = offered == member.protocols
        is_leader = member.member_id == self.leader
        if self.stage is GroupStage.COMPLETING and unchanged:
            # The answer was lost; the same once more.
            return [GroupAnswer(token, self._joined(member))]
        if self.stage is GroupStage.STABLE and unchanged and not is_leader:
            return [GroupAnswer(token, self._joined(member))]
        if self.stage is GroupStage.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        effects = self._drop_waits(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._wants(member, asked, token)
        return effects + self._rebalance(now_ms)

    @staticmethod
    def _wants(member: GroupMember, asked: JoinGroupRequest, token: Token | None) -> None:
        timeout_ms = asked.rebalance_timeout_ms
        member.session_timeout_ms = asked.session_timeout_ms
        member.rebalance_timeout_ms = timeout_ms if timeout_ms >= 0 else asked.session_timeout_ms
        member.protocols = [(one.name, one.metadata) for one in asked.protocols]
        member.joining = token

    def _replace_static(
        self,
        instance: str,
        asked: JoinGroupRequest,
        caller: JoiningClient,
        token: Token,
        now_ms: int,
    ) -> Effects:
        """A static member comes back: with a new id, and without a rebalance if it can be."""
        old_id, new_id, old_leader = self.statics[instance], caller.fresh_id, self.leader
        member = self.members.pop(old_id)
        effects = self._drop_waits(member, ErrorCode.FENCED_INSTANCE_ID)
        member.member_id, member.client_id, member.host = new_id, caller.client_id, caller.host
        self._add(member)
        if self.leader == old_id:
            self.leader = new_id
        self._wants(member, asked, None)
        member.touch(now_ms)
        same = self.stage is GroupStage.STABLE and self._elect_protocol() == self.protocol
        if not same:
            member.joining = token
            return effects + self._rebalance(now_ms)
        answer = self._joined(member)
        answer.leader, answer.members = old_leader or "", []
        if caller.can_skip_assignment and self.leader == new_id:
            answer = self._joined(member)
            answer.skip_assignment = True
        return [*effects, Save(self.name, self.image(), (GroupAnswer(token, answer),))]

    # --- a rebalance --------------------------------------------------------------------------

    def _rebalance(self, now_ms: int) -> Effects:
        """Everybody is to join again; whoever waits for an assignment is told."""
        effects: Effects = []
        if self.stage is GroupStage.COMPLETING:
            for member in self.members.values():
                member.assignment = b""
                effects += self._answer_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if self.stage is not GroupStage.PREPARING:
            timeouts = (one.rebalance_timeout_ms for one in self.members.values())
            wait_ms = max(timeouts, default=0)
            if self.stage is GroupStage.EMPTY:
                wait_ms = min(wait_ms, self.initial_delay_ms)
            self.deadline_ms = now_ms + wait_ms
            self.delayed = self.stage is GroupStage.EMPTY and wait_ms > 0
            self.stage = GroupStage.PREPARING
        return effects + self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> Effects:
        if self.stage is not GroupStage.PREPARING or self.pending or self.delayed:
            return []
        if any(one.joining is None for one in self.members.values()):
            return []
        return self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> Effects:
        """The generation begins, with those who came; static members that did not stay in it."""
        late = [one for one in self.members.values() if one.joining is None]
        for member in late:
            if member.instance_id is None:
                self._remove(member)
        joined = [one for one in self.members.values() if one.joining is not None]
        if not joined and self.members:
            # Only static members are left, and none came: wait on.
            self.deadline_ms = now_ms + max(
                one.rebalance_timeout_ms for one in self.members.values()
            )
            return []
        self.deadline_ms, self.delayed = None, False
        self.generation += 1
        if not self.members:
            self.stage, self.protocol, self.leader = GroupStage.EMPTY, None, None
            self.emptied_ms = now_ms
            return [Save(self.name, self.image())]
        self.protocol = self._elect_protocol()
        if self.leader not in {one.member_id for one in joined}:
            self.leader = joined[0].member_id
        self.stage = GroupStage.COMPLETING
        self.unsynced = {one.member_id for one in joined}
        self.deadline_ms = now_ms + max(one.rebalance_timeout_ms for one in joined)
        effects: Effects = []
        for member in joined:
            effects.append(GroupAnswer(member.joining, self._joined(member)))
            member.joining, member.is_new = None, False
            member.touch(now_ms)
        return effects

    def _elect_protocol(self) -> str:
        """Of those that all have, the one that most have first."""
        common = set.intersection(
            *({name for name, _ in one.protocols} for one in self.members.values())
        )
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in common)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def _joined(self, member: GroupMember) -> JoinGroupResponse:
        members = []
        if member.member_id == self.leader:
            members = [
                JoinedMember(
                    member_id=one.member_id,
                    group_instance_id=one.instance_id,
                    metadata=one.metadata(self.protocol),
                )
                for one in self.members.values()
            ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            leader=self.leader or "",
            member_id=member.member_id,
            members=members,
        )

    # --- assignments --------------------------------------------------------------------------

    def sync(self, asked: SyncGroupRequest, token: Token, now_ms: int) -> Effects:
        """A member wants its assignment; the leader brings everybody's."""
        member = self.check_member(asked.member_id, asked.group_instance_id, asked.generation_id)
        for said, held in (
            (asked.protocol_type, self.protocol_type),
            (asked.protocol_name, self.protocol),
        ):
            if said is not None and said != held:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.stage is GroupStage.PREPARING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        if self.stage is GroupStage.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        member.touch(now_ms)
        if self.stage is GroupStage.STABLE:
            return [GroupAnswer(token, self._synced(member))]
        member.syncing = token
        self.unsynced.discard(member.member_id)
        if member.member_id != self.leader:
            return []
        given = {one.member_id: one.assignment for one in asked.assignments}
        return [Save(self.name, self.image(given))]

    def saved(self, saved: SavedGroup, now_ms: int) -> Effects:
        """The generation is durable: its members may know what they have."""
        if self.stage is not GroupStage.COMPLETING or saved.generation != self.generation:
            return []
        for one in saved.members:
            if one.member_id in self.members:
                self.members[one.member_id].assignment = one.assignment
        self.stage = GroupStage.STABLE
        effects: Effects = []
        for member in self.members.values():
            if member.syncing is not None:
                effects += self._answer_sync(member, ErrorCode.NONE)
                member.touch(now_ms)
        return effects

    def not_saved(self, saved: SavedGroup, now_ms: int) -> Effects:
        """The disk did not take it: nobody has an assignment, and all join again."""
        if self.stage is not GroupStage.COMPLETING or saved.generation != self.generation:
            return []
        effects: Effects = []
        for member in self.members.values():
            effects += self._answer_sync(member, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return effects + self._rebalance(now_ms)

    def _synced(self, member: GroupMember) -> SyncGroupResponse:
        return SyncGroupResponse(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol,
            assignment=member.assignment,
        )

    def _answer_sync(self, member: GroupMember, error: ErrorCode) -> Effects:
        if member.syncing is None:
            return []
        answer = SyncGroupResponse(error_code=error) if error else self._synced(member)
        token, member.syncing = member.syncing, None
        return [GroupAnswer(token, answer)]

    # --- staying and leaving ------------------------------------------------------------------

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now_ms: int
    ) -> ErrorCode:
        """A sign of life; what the member is told."""
        member = self.check_member(member_id, instance_id, generation)
        member.touch(now_ms)
        return (
            ErrorCode.REBALANCE_IN_PROGRESS
            if self.stage is GroupStage.PREPARING
            else ErrorCode.NONE
        )

    def leave(self, member_id: str, instance_id: str | None, now_ms: int) -> Effects:
        """Somebody goes. By its instance alone, or by its id, or by both."""
        if instance_id is not None:
            if instance_id not in self.statics:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if not member_id:
                member_id = self.statics[instance_id]
            self._check_static(instance_id, member_id)
        if self.pending.pop(member_id, None) is not None:
            return self._complete_if_all_joined(now_ms)
        return self._out(self._member(member_id), now_ms)

    def advance(self, now_ms: int) -> Effects:
        """What has to happen because time passed."""
        effects: Effects = []
        for member_id in [one for one, until_ms in self.pending.items() if now_ms > until_ms]:
            del self.pending[member_id]
            effects += self._complete_if_all_joined(now_ms)
        for member in [one for one in self.members.values() if one.is_silent(now_ms)]:
            effects += self._out(member, now_ms)
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            effects += self._overdue(now_ms)
        return effects

    def _overdue(self, now_ms: int) -> Effects:
        if self.stage is GroupStage.PREPARING:
            self.pending.clear()
            return self._complete_join(now_ms)
        self.deadline_ms = None
        if self.stage is not GroupStage.COMPLETING or not self.unsynced:
            return []
        effects: Effects = []
        for member_id in list(self.unsynced):
            if member_id in self.members:
                member = self.members[member_id]
                effects += self._drop_waits(member, ErrorCode.UNKNOWN_MEMBER_ID)
                self._remove(member)
        return effects + self._rebalance(now_ms)

    def _out(self, member: GroupMember, now_ms: int) -> Effects:
        effects = self._drop_waits(member, ErrorCode.UNKNOWN_MEMBER_ID)
        self._remove(member)
        if self.stage in (GroupStage.STABLE, GroupStage.COMPLETING):
            return effects + self._rebalance(now_ms)
        return effects + self._complete_if_all_joined(now_ms)

    # --- members ------------------------------------------------------------------------------

    def check_member(self, member_id: str, instance_id: str | None, generation: int) -> GroupMember:
        """The member who says so; refuse a stranger, a fenced one, and one of another time."""
        if instance_id is not None:
            self._check_static(instance_id, member_id)
        member = self._member(member_id)
        if generation != self.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member

    def _member(self, member_id: str) -> GroupMember:
        member = self.members.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _check_static(self, instance_id: str, member_id: str) -> None:
        held = self.statics.get(instance_id)
        if held is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if held != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)

    def _add(self, member: GroupMember) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id

    def _remove(self, member: GroupMember) -> None:
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        if member.instance_id is not None:
            self.statics.pop(member.instance_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def _drop_waits(self, member: GroupMember, error: ErrorCode) -> Effects:
        effects = self._answer_sync(member, error)
        if member.joining is not None:
            effects.append(GroupAnswer(member.joining, _refusal(error, member.member_id)))
            member.joining = None
        return effects


def _refusal(error: ErrorCode, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error, member_id=member_id)
