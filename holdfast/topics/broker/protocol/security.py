"""Messages with which clients show who they are, and access lists are managed."""

from __future__ import annotations

from holdfast.topics.broker.protocol.codec import (
    i8,
    i16,
    i32,
    i64,
    message,
    octets,
    optional_string,
    since,
    string,
)


@message
class SaslHandshakeRequest:
    mechanism: string


@message
class SaslHandshakeResponse:
    error_code: i16 = 0
    mechanisms: list[string]


@message
class SaslAuthenticateRequest:
    auth_bytes: octets


@message
class SaslAuthenticateResponse:
    error_code: i16 = 0
    error_message: optional_string = None
    auth_bytes: octets = b""
    session_lifetime_ms: i64 = since(1, 0)


@message
class AclFilter:
    resource_type: i8
    resource_name: optional_string
    pattern_type: i8 = since(1, 3)
    principal: optional_string
    host: optional_string
    operation: i8
    permission_type: i8


@message
class DescribeAclsRequest:
    resource_type: i8
    resource_name: optional_string
    pattern_type: i8 = since(1, 3)
    principal: optional_string
    host: optional_string
    operation: i8
    permission_type: i8


@message
class DescribedAcl:
    principal: string
    host: string
    operation: i8
    permission_type: i8


@message
class DescribedAclResource:
    resource_type: i8
    resource_name: string
    pattern_type: i8 = since(1, 3)
    acls: list[DescribedAcl]


@message
class DescribeAclsResponse:
    throttle_time_ms: i32 = 0
    error_code: i16 = 0
    error_message: optional_string = None
    resources: list[DescribedAclResource]


@message
class CreateAcl:
    resource_type: i8
    resource_name: string
    pattern_type: i8 = since(1, 3)
    principal: string
    host: string
    operation: i8
    permission_type: i8


@message
class CreateAclsRequest:
    creations: list[CreateAcl]


@message
class CreatedAcl:
    error_code: i16 = 0
    error_message: optional_string = None


@message
class CreateAclsResponse:
    throttle_time_ms: i32 = 0
    results: list[CreatedAcl]


@message
class DeleteAclsRequest:
    filters: list[AclFilter]


@message
class MatchingAcl:
    error_code: i16 = 0
    error_message: optional_string = None
    resource_type: i8
    resource_name: string
    pattern_type: i8 = since(1, 3)
    principal: string
    host: string
    operation: i8
    permission_type: i8


@message
class DeletedAcls:
    error_code: i16 = 0
    error_message: optional_string = None
    matching: list[MatchingAcl]


@message
class DeleteAclsResponse:
    throttle_time_ms: i32 = 0
    results: list[DeletedAcls]
