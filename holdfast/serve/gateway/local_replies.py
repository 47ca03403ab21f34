"""What Envoy says by itself, in our words. Pure.

Whatever Envoy refuses or cannot do becomes an error as replicas give it: what, why and fix, as JSON
over REST and as a status with a sentence over gRPC, with the request's id. What the gateway's own
routes and programs say (`direct_response`, keys) keeps its text and gets the same form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from holdfast.serve.gateway.clusters import TYPE, Json
from holdfast.serve.gateway.keys import FILTER as LUA_FILTER
from holdfast.serve.protocol import management, marks
from holdfast.wire.limits import CLIENT_HEAD_S, CLIENT_IDLE_S, RETRY_AFTER_S
from holdfast.wire.proto import inference_pb2 as pb

# In one word, for programs: why the gateway itself answered.
ERROR_HEADER: Final = "x-holdfast-error"
REQUEST_ID: Final = marks.REQUEST_ID
OWN_TEXT: Final = "%LOCAL_REPLY_BODY%"

# Of a message of gRPC that is too large (`large_messages`): nobody else gives this status here.
OWN_TOO_LARGE: Final = 507

# Numbers of gRPC's status codes.
INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, PERMISSION_DENIED = 3, 4, 5, 7
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 8, 12, 13, 14, 16


@dataclass(frozen=True, slots=True)
class Reply:
    """What is said when Envoy answers with one of these `flags` (its own, of the access log), or,
    without flags, with this `status`. `what` may be `OWN_TEXT`. `word`: why, for programs; `grpc`:
    the status over gRPC."""

    word: str
    grpc: int
    what: str
    why: str = ""
    fix: str = ""
    status: int = 0
    flags: tuple[str, ...] = ()
    header: str = ""  # that the request has besides


def text(what: str, why: str = "", fix: str = "") -> str:
    """As the text of an error is everywhere."""
    lines = [what, *([f"why: {why}"] if why else []), *([f"fix: {fix}"] if fix else [])]
    return "\n".join(lines)


_AGAIN: Final = "try again"
_LOOK: Final = "holdfast services"

# The first that fits counts.
REPLIES: Final = (
    Reply(
        "rate",
        RESOURCE_EXHAUSTED,
        "the service's rate is used up",
        "more requests came in a second than the service takes",
        "try again later, or: holdfast serve SERVICE --rate N",
        status=429,
    ),
    Reply(
        "no-replica",
        UNAVAILABLE,
        "no replica of this service can answer now",
        "none is well and reachable from this gateway",
        f"{_AGAIN}; {_LOOK} says what its replicas do",
        flags=("UH", "NC"),
    ),
    Reply(
        "overloaded",
        UNAVAILABLE,
        "too many requests are on their way",
        "the gateway has as many as it takes at once",
        f"{_AGAIN} later, or add replicas: holdfast scale",
        flags=("UO", "OM"),
    ),
    Reply(
        "timeout",
        DEADLINE_EXCEEDED,
        "no answer came in time",
        "the service's time-out has passed",
        f"{_AGAIN}; {_LOOK} shows the time-out and how long answers take",
        flags=("UT", "DT", "UMSDR"),
    ),
    Reply(
        "slow-client",
        DEADLINE_EXCEEDED,
        "the request did not come in time",
        f"its head may take {CLIENT_HEAD_S:g} s, and nothing may come for {CLIENT_IDLE_S:g} s",
        "send it again, without pauses",
        status=408,
    ),
    Reply(
        "lost-replica",
        UNAVAILABLE,
        "the replica was lost before its answer came",
        "its connection broke, and the request was not or could not be tried elsewhere",
        _AGAIN,
        flags=("UF", "UC", "UR", "URX", "LR", "LH", "UPE"),
    ),
    Reply(
        "slow-client",
        DEADLINE_EXCEEDED,
        "the request did not go on",
        f"nothing has come or gone for {CLIENT_IDLE_S:g} s",
        "send it again, without pauses",
        flags=("SI",),
    ),
    Reply(
        "too-large",
        RESOURCE_EXHAUSTED,
        "the request is larger than the service takes",
        "its body is above the service's limit",
        "send less at once, or: holdfast serve SERVICE --body-max SIZE",
        status=413,
    ),
    Reply(
        "head-too-large",
        RESOURCE_EXHAUSTED,
        "the request's head is too large",
        "it has more than 60 KiB, or more than 100 headers",
        "send fewer or shorter headers, or a shorter path",
        status=431,
    ),
    Reply(
        "malformed",
        INVALID_ARGUMENT,
        "this is no HTTP that the gateway understands",
        "the request line, a header, the length or the path is malformed",
        "send HTTP/1.1 or HTTP/2 with a host and a path: GET /v2",
        status=400,
    ),
    Reply(
        "malformed",
        INVALID_ARGUMENT,
        "this is no HTTP that the gateway understands",
        "it is of another version",
        "send HTTP/1.1 or HTTP/2",
        status=426,
    ),
    Reply(
        "malformed",
        INVALID_ARGUMENT,
        "the gateway does not do this",
        "the request asks for another protocol, or for a transfer that is not known",
        "send HTTP/1.1 or HTTP/2, in chunks or with a length",
        status=501,
    ),
    Reply(
        "no-route",
        NOT_FOUND,
        "there is nothing here",
        "no service has this name or path",
        f"{_LOOK} shows what is served",
        flags=("NR",),
    ),
    Reply(
        "malformed",
        INVALID_ARGUMENT,
        "the gateway speaks no other protocol",
        "the request asks for one by its header Upgrade",
        "send it without that header",
        status=403,
        header="upgrade",
    ),
    # What we say ourselves: the text has what, why and fix already.
    Reply("too-large", RESOURCE_EXHAUSTED, OWN_TEXT, status=OWN_TOO_LARGE),
    Reply("key", UNAUTHENTICATED, OWN_TEXT, status=401),
    Reply("forbidden", PERMISSION_DENIED, OWN_TEXT, status=403),
    Reply("not-found", NOT_FOUND, OWN_TEXT, status=404),
    Reply("method", UNIMPLEMENTED, OWN_TEXT, status=405),
    Reply("unavailable", UNAVAILABLE, OWN_TEXT, status=503),
)
# These may come before there is a request.
_UNREAD: Final = ("malformed", "head-too-large")
# Whatever else there may be.
_REST: Final = Reply(
    "gateway",
    INTERNAL,
    "the gateway could not pass this on",
    "Envoy answered by itself; the access log has the request's id and its flags",
    f"{_AGAIN}; {_LOOK}",
)


def config() -> Json:
    """`local_reply_config` of the listener."""
    return {"mappers": [mapper for reply in (*REPLIES, _REST) for mapper in _mappers(reply)]}


def _mappers(reply: Reply) -> Iterator[Json]:
    """One for gRPC, where the sentence is the status' message, and one for all others."""
    error_text = text(reply.what, reply.why, reply.fix)
    yield {
        "filter": _all(_fits(reply), _speaks_grpc(True)),
        "headers_to_add": [*_headers(reply), _header("grpc-status", str(reply.grpc))],
        "body_format_override": {"text_format_source": {"inline_string": error_text}},
    }
    yield {
        "filter": _all(_fits(reply), _speaks_grpc(False)),
        "headers_to_add": _headers(reply),
        "body_format_override": {
            "json_format": {"error": error_text},
            "content_type": "application/json",
        },
    }


def _headers(reply: Reply) -> list[Json]:
    # What is no HTTP has no id of its own: the log has the connection too.
    made = "connection-%CONNECTION_ID%" if reply.word in _UNREAD else "%STREAM_ID%"
    found = [_header(ERROR_HEADER, reply.word), _header(REQUEST_ID, made)]
    if reply.grpc == UNAVAILABLE or reply.word == "rate":
        found.append(_header("retry-after", str(RETRY_AFTER_S)))
    return found


def _fits(reply: Reply) -> Json:
    if reply.header:
        there = {"header_filter": {"header": {"name": reply.header, "present_match": True}}}
        return _all(_fits(replace(reply, header="")), there)
    if reply.flags:
        return {"response_flag_filter": {"flags": list(reply.flags)}}
    op, status = ("EQ", reply.status) if reply.status else ("GE", 400)
    value = {"default_value": status, "runtime_key": "holdfast.never_set"}
    return {"status_code_filter": {"comparison": {"op": op, "value": value}}}


def _speaks_grpc(yes: bool) -> Json:
    header = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        "treat_missing_header_as_empty": True,
        "invert_match": not yes,
    }
    return {"header_filter": {"header": header}}


def _all(*filters: Json) -> Json:
    return {"and_filter": {"filters": list(filters)}}


def _header(name: str, value: str) -> Json:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


# --- own answers ----------------------------------------------------------------------------------
# What the gateway answers itself: what it is, whether it is ready, what is served. Pure.


GET: Final = ("GET", "HEAD")
POST: Final = ("POST",)

# Puts the index of all services in the place of the one that a replica knows: Envoy has no message
# of gRPC as an answer of its own.
INDEX_PROGRAM: Final = "index"
INDEX_LUA: Final = """
function envoy_on_response(handle)
  local index = handle:metadata():get("index")
  if index == nil then return end
  local body = handle:body()
  if body == nil or body:length() < 5 then return end
  body:setBytes((index:gsub("..", function(two) return string.char(tonumber(two, 16)) end)))
end
"""

Index = Sequence[tuple[str, int]]


def own_answers(index: Index, release: str, *, answering: bool) -> Iterator[Json]:
    """`index`: names and versions that anybody may ask for."""
    yield from _answer("/v2", GET, 200, _about(release))
    yield from _answer("/v2/health/live", GET, 200, '{"live":true}')
    if answering:
        yield from _answer("/v2/health/ready", GET, 200, '{"ready":true}')
    else:
        refusal = text("no service has a version to answer", fix="holdfast services")
        yield direct({"path": "/v2/health/ready"}, 503, refusal)
    entries = [management.entry(name, version) for name, version in index]
    yield from _answer("/v2/repository/index", POST, 200, _json(entries))
    names = sorted({name for name, _ in index})
    yield from _answer("/v1/models", GET, 200, _json({"models": names}))
    nothing = text(
        "no service has this name or path here", fix="holdfast services shows what is served"
    )
    yield direct({"prefix": "/"}, 404, nothing)


def grpc_nowhere(prefix: str, header: str) -> Json:
    """For calls that no service is for."""
    refusal = text(
        "no service has the model that this message names",
        why="the name is looked for at the message's beginning",
        fix=f"holdfast services shows what is served; the header {header}: NAME says it too",
    )
    return direct({"prefix": prefix}, 404, refusal)


def no_document(match: Json, header: str) -> Json:
    """For the description of a service, where there are several."""
    refusal = text(
        "several services are here, and each has a description of its own",
        fix=f"send the header {header}: NAME; holdfast services shows the names",
    )
    return direct(match, 404, refusal)


def grpc_index(route: Json, index: Index) -> Json:
    """The route of the call `RepositoryIndex`, with what it is to answer."""
    found = pb.RepositoryIndexResponse(
        models=[
            pb.RepositoryIndexResponse.ModelIndex(**management.entry(name, version))
            for name, version in index
        ]
    ).SerializeToString()
    frame = bytes([0]) + len(found).to_bytes(4, "big") + found
    program = {
        "@type": TYPE + "envoy.extensions.filters.http.lua.v3.LuaPerRoute",
        "name": INDEX_PROGRAM,
    }
    return {
        **route,
        "metadata": {"filter_metadata": {LUA_FILTER: {"index": frame.hex()}}},
        "typed_per_filter_config": {
            **route.get("typed_per_filter_config", {}),
            LUA_FILTER: program,
        },
    }


def direct(match: Json, status: int, text: str, headers: dict[str, str] | None = None) -> Json:
    """An error of ours; the listener makes JSON of the text."""
    return {
        "match": match,
        "direct_response": {"status": status, "body": {"inline_string": text}},
        "response_headers_to_add": [_header(*pair) for pair in (headers or {}).items()],
    }


def _answer(path: str, methods: tuple[str, ...], status: int, body: str) -> Iterator[Json]:
    any_of = "|".join(methods)
    method = {"name": ":method", "string_match": {"safe_regex": {"regex": any_of}}}
    yield {
        "match": {"path": path, "headers": [method]},
        "direct_response": {"status": status, "body": {"inline_string": body}},
        "response_headers_to_add": [_header("content-type", "application/json")],
    }
    refusal = text(f"this takes {methods[0]} only", fix=f"{methods[0]} {path}")
    yield direct({"path": path}, 405, refusal, {"allow": ", ".join(methods)})


@lru_cache(maxsize=4)
def _about(release: str) -> str:
    return _json({"name": marks.NAME, "version": release, "extensions": marks.EXTENSIONS})


def _json(value: Any) -> str:
    return json.dumps(value)
