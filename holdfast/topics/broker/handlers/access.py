"""Logins, and the access list."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from holdfast.system import logs
from holdfast.topics.broker.core import acls, commands, sasl
from holdfast.topics.broker.core.acls import CLUSTER_NAME, Operation, Pattern, ResourceKind
from holdfast.topics.broker.core.commands import Acl
from holdfast.topics.broker.core.state import CommandOutcome
from holdfast.topics.broker.protocol.codes import ErrorCode, KafkaError
from holdfast.topics.broker.protocol.security import (
    AclFilter,
    CreateAcl,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribedAcl,
    DescribedAclResource,
    MatchingAcl,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from holdfast.topics.broker.request import ClientRequest

if TYPE_CHECKING:
    from holdfast.topics.broker.broker import Broker

log = logs.get(__name__)

# Before this version of the handshake tokens come bare.
_WRAPPED_FROM: Final = 1
# Entries of the list: every request is checked against all of them.
ACLS_MAX: Final = 2_000


# --- logins ---------------------------------------------------------------------------------------


def sasl_handshake(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, SaslHandshakeRequest)
    code = ErrorCode.NONE
    try:
        if request.link.principal:
            raise KafkaError(ErrorCode.ILLEGAL_SASL_STATE)
        raw = request.version < _WRAPPED_FROM
        broker.users.begin(request.link, asked.mechanism, raw=raw)
    except KafkaError as error:
        code = error.code
    request.answer(SaslHandshakeResponse(error_code=code, mechanisms=list(sasl.MECHANISMS)))


def sasl_authenticate(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, SaslAuthenticateRequest)
    try:
        answer = broker.users.step(request.link, asked.auth_bytes)
    except KafkaError as error:
        request.answer(SaslAuthenticateResponse(error_code=error.code, error_message=str(error)))
        return
    except (sasl.AuthenticationFailed, UnicodeDecodeError) as error:
        log.warning("a login failed", peer=request.link.peer, why=str(error))
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        text = "Authentication failed: Invalid username or password"
        request.answer(SaslAuthenticateResponse(error_code=code, error_message=text))
        request.link.close()
        return
    request.answer(SaslAuthenticateResponse(auth_bytes=answer))


# --- the list -------------------------------------------------------------------------------------


def _refused(
    broker: Broker, request: ClientRequest, operation: Operation
) -> tuple[ErrorCode, str] | None:
    if not broker.users.required:
        return ErrorCode.SECURITY_DISABLED, "No Authorizer is configured."
    if not broker.may(request, operation, ResourceKind.CLUSTER, CLUSTER_NAME):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    return None


def _matcher(one: AclFilter | DescribeAclsRequest) -> Callable[[Acl], bool]:
    return lambda acl: acls.matches(
        acl,
        resource_type=one.resource_type,
        resource_name=one.resource_name,
        pattern_type=one.pattern_type,
        principal=one.principal,
        host=one.host,
        operation=one.operation,
        permission=one.permission_type,
    )


def describe_acls(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DescribeAclsRequest)
    refused = _refused(broker, request, Operation.DESCRIBE)
    if refused is not None:
        code, text = refused
        request.answer(DescribeAclsResponse(error_code=code, error_message=text, resources=[]))
        return
    found: dict[tuple[int, str, int], DescribedAclResource] = {}
    for acl in sorted(filter(_matcher(asked), broker.state.acls)):
        key = acl.resource_type, acl.resource_name, acl.pattern_type
        if key not in found:
            found[key] = DescribedAclResource(
                resource_type=key[0], resource_name=key[1], pattern_type=key[2], acls=[]
            )
        entry = DescribedAcl(
            principal=acl.principal,
            host=acl.host,
            operation=acl.operation,
            permission_type=acl.permission,
        )
        found[key].acls.append(entry)
    request.answer(DescribeAclsResponse(resources=list(found.values())))


def create_acls(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, CreateAclsRequest)
    refused = _refused(broker, request, Operation.ALTER)
    results, made = [], []
    for one in asked.creations:
        result = CreatedAcl()
        try:
            if refused is not None:
                raise KafkaError(*refused)
            made.append(_entry(broker, one))
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.text
        results.append(result)

    def done(outcomes: list[CommandOutcome]) -> None:
        for outcome in outcomes:
            for result in results:
                result.error_code = result.error_code or outcome.error
        request.answer(CreateAclsResponse(results=results))

    broker.write([commands.AddAcls(made)] if made else [], done)


def _entry(broker: Broker, one: CreateAcl) -> Acl:
    kinds, operations = set(ResourceKind) - {ResourceKind.ANY}, set(Operation) - {Operation.ANY}
    good = (
        one.resource_type in kinds
        and one.operation in operations
        and one.pattern_type in (Pattern.LITERAL, Pattern.PREFIXED)
        and one.permission_type in (acls.DENY, acls.ALLOW)
        and one.resource_name
    )
    if not good:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the entry is not complete")
    if not one.principal.startswith("User:"):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a principal is User:NAME")
    if one.resource_type == ResourceKind.CLUSTER and one.resource_name != CLUSTER_NAME:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cluster is called {CLUSTER_NAME}")
    if len(broker.state.acls) >= ACLS_MAX:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"there are {ACLS_MAX} entries already")
    return Acl(
        one.resource_type,
        one.resource_name,
        one.pattern_type,
        one.principal,
        one.host,
        one.operation,
        one.permission_type,
    )


def delete_acls(broker: Broker, request: ClientRequest) -> None:
    asked = request.body
    assert isinstance(asked, DeleteAclsRequest)
    refused = _refused(broker, request, Operation.ALTER)
    results, gone = [], []
    for one in asked.filters:
        result = DeletedAcls(matching=[])
        if refused is not None:
            result.error_code, result.error_message = refused
        else:
            matching = sorted(filter(_matcher(one), broker.state.acls))
            gone += matching
            result.matching = [_matching(acl) for acl in matching]
        results.append(result)

    def done(outcomes: list[CommandOutcome]) -> None:
        for outcome in outcomes:
            for result in results:
                result.error_code = result.error_code or outcome.error
        request.answer(DeleteAclsResponse(results=results))

    broker.write([commands.RemoveAcls(gone)] if gone else [], done)


def _matching(acl: Acl) -> MatchingAcl:
    return MatchingAcl(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
