"""Groups: members join, sync, say that they live, and leave; and what is shown of them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from holdfast.topics.broker.core import commands
from holdfast.topics.broker.core.acls import Operation, ResourceKind
from holdfast.topics.broker.core.commands import AnyCommand
from holdfast.topics.broker.core.group import GroupStage, JoiningClient
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.handlers.cluster import allowed_operations
from holdfast.topics.broker.protocol.codes import ErrorCode
from holdfast.topics.broker.protocol.groups import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

_KNOWN_ID_FROM: Final = 4
_SKIPS_FROM: Final = 9
_MANY_LEAVE_FROM: Final = 3
_GROUP_NOT_FOUND_FROM: Final = 6
CLASSIC: Final = "classic"


def join_group(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, JoinGroupRequest)
    if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
        request.answer(JoinGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    named = asked.group_instance_id or request.client_id
    caller = JoiningClient(
        request.client_id,
        request.link.host,
        f"{named}-{_fresh()}",
        needs_known_id=request.version >= _KNOWN_ID_FROM,
        can_skip_assignment=request.version >= _SKIPS_FROM,
    )
    broker.follow(broker.groups.join(asked, caller, request, broker.now_ms()))


def _fresh() -> str:
    """A random part of a name, in the form that Java gives it."""
    raw = secrets.token_hex(16)
    return "-".join((raw[:8], raw[8:12], raw[12:16], raw[16:20], raw[20:]))


def sync_group(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, SyncGroupRequest)
    if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
        request.answer(SyncGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    broker.follow(broker.groups.sync(asked, request, broker.now_ms()))


def heartbeat(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, HeartbeatRequest)
    if broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
        code = broker.groups.heartbeat(asked, broker.now_ms())
    else:
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    request.answer(HeartbeatResponse(error_code=code))


def leave_group(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, LeaveGroupRequest)
    if not broker.may(request, Operation.READ, ResourceKind.GROUP, asked.group_id):
        request.answer(LeaveGroupResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    leaving = asked.members
    if request.version < _MANY_LEAVE_FROM:
        leaving = [LeavingMember(member_id=asked.member_id, group_instance_id=None)]
    answer = LeaveGroupResponse()
    for one in leaving:
        left = LeftMember(member_id=one.member_id, group_instance_id=one.group_instance_id)
        code, effects = broker.groups.leave(
            asked.group_id, one.member_id, one.group_instance_id, broker.now_ms()
        )
        broker.follow(effects)
        left.error_code = code
        if request.version < _MANY_LEAVE_FROM:
            answer.error_code = code
        answer.members.append(left)
    request.answer(answer)


# --- for people -----------------------------------------------------------------------------------


def describe_groups(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DescribeGroupsRequest)
    described = []
    for name in asked.groups:
        if not broker.may(request, Operation.DESCRIBE, ResourceKind.GROUP, name):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            described.append(DescribedGroup(group_id=name, group_state="", error_code=code))
            continue
        one = broker.groups.describe(name, keeps_offsets=name in broker.state.offsets)
        if one.group_state == GroupStage.DEAD and request.version >= _GROUP_NOT_FOUND_FROM:
            one.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            one.error_message = f"Group {name} not found."
        if asked.include_authorized_operations:
            one.authorized_operations = allowed_operations(
                broker, request, ResourceKind.GROUP, name
            )
        described.append(one)
    request.answer(DescribeGroupsResponse(groups=described))


def list_groups(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, ListGroupsRequest)
    live = broker.groups.by_name
    states = {state.lower() for state in asked.states_filter}
    types = {kind.lower() for kind in asked.types_filter}
    listed = []
    for name in sorted({*live, *broker.state.offsets}):
        if not broker.may(request, Operation.DESCRIBE, ResourceKind.GROUP, name):
            continue
        group = live.get(name)
        state = GroupStage.EMPTY if group is None else group.stage
        if (states and state.lower() not in states) or (types and CLASSIC not in types):
            continue
        one = ListedGroup(
            group_id=name,
            protocol_type=group.protocol_type if group else "",
            group_state=state,
            group_type=CLASSIC,
        )
        listed.append(one)
    request.answer(ListGroupsResponse(groups=listed))


def delete_groups(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DeleteGroupsRequest)
    results: list[DeletedGroup] = []
    accepted: list[tuple[DeletedGroup, AnyCommand]] = []
    for name in asked.groups:
        result = DeletedGroup(group_id=name)
        results.append(result)
        if not broker.may(request, Operation.DELETE, ResourceKind.GROUP, name):
            result.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif name not in broker.groups.by_name and name not in broker.state.offsets:
            result.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        elif broker.groups.is_live(name):
            result.error_code = ErrorCode.NON_EMPTY_GROUP
        else:
            accepted.append((result, commands.DeleteGroup(name)))

    def done(outcomes: list[CommandOutcome]) -> None:
        for (result, _), outcome in zip(accepted, outcomes, strict=True):
            result.error_code = outcome.error
            if not outcome.error and not broker.groups.is_live(result.group_id):
                broker.groups.forget(result.group_id)
        request.answer(DeleteGroupsResponse(results=results))

    broker.write([command for _, command in accepted], done)
