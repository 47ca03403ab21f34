"""Who may do what: Kafka's access lists. Deny beats allow, and nothing that matches denies."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from holdfast.topics.broker.core.commands import Acl

ANY: Final = 1
WILDCARD: Final = "*"
EVERYBODY: Final = "User:*"
CLUSTER_NAME: Final = "kafka-cluster"


class ResourceKind(IntEnum):
    """What an entry is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    """What is done to it."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Pattern(IntEnum):
    """How an entry's name is meant."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


DENY: Final = 2
ALLOW: Final = 3

# Who may do one of these may also look.
_IMPLIED: Final = {
    Operation.DESCRIBE: {
        Operation.READ,
        Operation.WRITE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
    },
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS, Operation.DESCRIBE_CONFIGS},
}


def allows(
    acls: Iterable[Acl],
    principal: str,
    host: str,
    operation: Operation,
    kind: ResourceKind,
    name: str,
) -> bool:
    """Whether these entries let this principal do it."""
    allowed = False
    enough = _IMPLIED.get(operation, {operation})
    for acl in acls:
        if acl.resource_type != kind or not _names(acl, name) or not _is_of(acl, principal, host):
            continue
        if acl.permission == DENY and acl.operation in (operation, Operation.ALL):
            return False
        if acl.permission == ALLOW and (acl.operation == Operation.ALL or acl.operation in enough):
            allowed = True
    return allowed


def allows_any(
    acls: Iterable[Acl], principal: str, host: str, operation: Operation, kind: ResourceKind
) -> bool:
    """Whether there is a resource of this kind to which it may do this."""
    return any(
        acl.resource_type == kind
        and acl.permission == ALLOW
        and acl.operation in (operation, Operation.ALL)
        and _is_of(acl, principal, host)
        for acl in acls
    )


def _names(acl: Acl, name: str) -> bool:
    if acl.pattern_type == Pattern.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name in (name, WILDCARD)


def _is_of(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, EVERYBODY) and acl.host in (host, WILDCARD)


def matches(
    acl: Acl,
    *,
    resource_type: int,
    resource_name: str | None,
    pattern_type: int,
    principal: str | None,
    host: str | None,
    operation: int,
    permission: int,
) -> bool:
    """Whether a filter of the admin requests means this entry."""
    if resource_type not in (ANY, acl.resource_type):
        return False
    if operation not in (ANY, acl.operation) or permission not in (ANY, acl.permission):
        return False
    if principal not in (None, acl.principal) or host not in (None, acl.host):
        return False
    if pattern_type == Pattern.MATCH:
        return resource_name is None or _names(acl, resource_name)
    if pattern_type not in (Pattern.ANY, acl.pattern_type):
        return False
    return resource_name in (None, acl.resource_name)
