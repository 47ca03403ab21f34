"""All groups that live: the table of them, and what is asked about them.

A group that only keeps offsets has no entry here; it is `Empty` to whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.topics.broker.core.commands import SavedGroup
from holdfast.topics.broker.core.group import (
    Effects,
    Group,
    GroupAnswer,
    GroupStage,
    JoiningClient,
    Save,
    Token,
)
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.groups import (
    DescribedGroup,
    DescribedMember,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

# Kafka's own bounds for the time after which a silent member is out.
SESSION_TIMEOUT_MS_MIN: Final = 6_000
SESSION_TIMEOUT_MS_MAX: Final = 1_800_000
# A group is a few kilobytes; more of them are somebody's mistake.
GROUPS_MAX: Final = 20_000
MEMBERS_MAX: Final = 5_000
CONSUMER: Final = "consumer"


class GroupTable:
    """Groups by their names."""

    def __init__(
        self, saved: Mapping[str, SavedGroup], now_ms: int, *, initial_delay_ms: int = 0
    ) -> None:
        self._initial_delay_ms = initial_delay_ms
        self.by_name = {name: Group.of(name, one, now_ms) for name, one in saved.items()}

    # --- members ------------------------------------------------------------------------------

    def join(
        self, asked: JoinGroupRequest, caller: JoiningClient, token: Token, now_ms: int
    ) -> Effects:
        """Somebody wants in: it is answered now or later."""
        try:
            return self._for_join(asked).join(asked, caller, token, now_ms)
        except KafkaError as error:
            refusal = JoinGroupResponse(error_code=error.code, member_id=asked.member_id)
            return [GroupAnswer(token, refusal)]

    def _for_join(self, asked: JoinGroupRequest) -> Group:
        if not asked.group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        if not SESSION_TIMEOUT_MS_MIN <= asked.session_timeout_ms <= SESSION_TIMEOUT_MS_MAX:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self.by_name.get(asked.group_id)
        if group is None:
            if asked.member_id:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if len(self.by_name) >= GROUPS_MAX:
                raise KafkaError(ErrorCode.POLICY_VIOLATION, f"there are {GROUPS_MAX} groups")
            group = Group(asked.group_id, self._initial_delay_ms)
            self.by_name[asked.group_id] = group
        if not asked.member_id and len(group.members) + len(group.pending) >= MEMBERS_MAX:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return group

    def sync(self, asked: SyncGroupRequest, token: Token, now_ms: int) -> Effects:
        """A member wants its assignment: it is answered now or later."""
        try:
            return self._known(asked.group_id).sync(asked, token, now_ms)
        except KafkaError as error:
            return [GroupAnswer(token, SyncGroupResponse(error_code=error.code))]

    def heartbeat(self, asked: HeartbeatRequest, now_ms: int) -> ErrorCode:
        try:
            return self._known(asked.group_id).heartbeat(
                asked.member_id, asked.group_instance_id, asked.generation_id, now_ms
            )
        except KafkaError as error:
            return error.code

    def leave(
        self, name: str, member_id: str, instance_id: str | None, now_ms: int
    ) -> tuple[ErrorCode, Effects]:
        try:
            return ErrorCode.NONE, self._known(name).leave(member_id, instance_id, now_ms)
        except KafkaError as error:
            return error.code, []

    def _known(self, name: str) -> Group:
        if not name:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.by_name.get(name)
        if group is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    # --- what comes back ----------------------------------------------------------------------

    def saved(self, save: Save, now_ms: int) -> Effects:
        group = self.by_name.get(save.group)
        return [*save.then, *(group.saved(save.saved, now_ms) if group else [])]

    def not_saved(self, save: Save, now_ms: int) -> Effects:
        group = self.by_name.get(save.group)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        effects: Effects = [
            GroupAnswer(one.token, JoinGroupResponse(error_code=error)) for one in save.then
        ]
        return effects + (group.not_saved(save.saved, now_ms) if group else [])

    def advance(self, now_ms: int) -> Effects:
        """What has to happen because time passed."""
        effects: Effects = []
        for group in list(self.by_name.values()):
            effects += group.advance(now_ms)
            if not group.generation and not group.members and not group.pending:
                del self.by_name[group.name]  # somebody asked to join, and was not heard again
        return effects

    def refresh(self, now_ms: int) -> None:
        """Every member has a fresh time-out: we were paused, and nobody could have reached us."""
        for group in self.by_name.values():
            for member in group.members.values():
                member.touch(now_ms)

    # --- offsets ------------------------------------------------------------------------------

    def check_commit(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        *,
        in_transaction: bool = False,
        keeps_offsets: bool = False,
    ) -> None:
        """Refuse a commit of somebody who has no right to it (any more). A group that only keeps
        offsets is one without members."""
        if not name:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID)
        group = self.by_name.get(name)
        if group is None:
            if generation >= 0 and keeps_offsets:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if generation >= 0:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            return
        anonymous = generation < 0 and not member_id and instance_id is None
        if anonymous and (in_transaction or not group.members):
            return
        if generation < 0 and group.members and not in_transaction:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if not group.members and generation < 0:
            return
        member = group.check_member(member_id, instance_id, generation)
        member.touch(now_ms)
        if group.stage is GroupStage.COMPLETING and not in_transaction:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def is_live(self, name: str) -> bool:
        """Whether the group has members, or is about to."""
        group = self.by_name.get(name)
        return group is not None and (bool(group.members) or group.stage is not GroupStage.EMPTY)

    def subscribes(self, name: str, topic: str, parse: Callable[[bytes], set[str]]) -> bool:
        """Whether a member of a consumer group wants this topic."""
        group = self.by_name.get(name)
        if group is None or group.protocol_type != CONSUMER:
            return False
        members = group.members.values()
        return any(topic in parse(one.metadata(group.protocol)) for one in members)

    def forget(self, name: str) -> None:
        self.by_name.pop(name, None)

    # --- for people ---------------------------------------------------------------------------

    def describe(self, name: str, *, keeps_offsets: bool) -> DescribedGroup:
        group = self.by_name.get(name)
        if group is None:
            stage = GroupStage.EMPTY if keeps_offsets else GroupStage.DEAD
            return DescribedGroup(group_id=name, group_state=stage)
        settled = group.stage is GroupStage.STABLE
        members = [
            DescribedMember(
                member_id=one.member_id,
                group_instance_id=one.instance_id,
                client_id=one.client_id,
                client_host=f"/{one.host}",
                member_metadata=one.metadata(group.protocol) if settled else b"",
                member_assignment=one.assignment,
            )
            for one in group.members.values()
        ]
        return DescribedGroup(
            group_id=name,
            group_state=group.stage,
            protocol_type=group.protocol_type,
            protocol_data=(group.protocol or "") if settled else "",
            members=members,
        )
