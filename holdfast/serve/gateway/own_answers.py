"""What the gateway answers itself: what it is, whether it is ready, what is served. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

from holdfast.serve.gateway import local_replies
from holdfast.serve.gateway.clusters import TYPE, Json
from holdfast.serve.gateway.keys import FILTER as LUA_FILTER
from holdfast.serve.protocol import management, marks
from holdfast.wire.proto import inference_pb2 as pb

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
        text = local_replies.text("no service has a version to answer", fix="holdfast services")
        yield direct({"path": "/v2/health/ready"}, 503, text)
    entries = [management.entry(name, version) for name, version in index]
    yield from _answer("/v2/repository/index", POST, 200, _json(entries))
    names = sorted({name for name, _ in index})
    yield from _answer("/v1/models", GET, 200, _json({"models": names}))
    nothing = local_replies.text(
        "no service has this name or path here", fix="holdfast services shows what is served"
    )
    yield direct({"prefix": "/"}, 404, nothing)


def grpc_nowhere(prefix: str, header: str) -> Json:
    """For calls that no service is for."""
    text = local_replies.text(
        "no service has the model that this message names",
        why="the name is looked for at the message's beginning",
        fix=f"holdfast services shows what is served; the header {header}: NAME says it too",
    )
    return direct({"prefix": prefix}, 404, text)


def no_document(match: Json, header: str) -> Json:
    """For the description of a service, where there are several."""
    text = local_replies.text(
        "several services are here, and each has a description of its own",
        fix=f"send the header {header}: NAME; holdfast services shows the names",
    )
    return direct(match, 404, text)


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
    text = local_replies.text(f"this takes {methods[0]} only", fix=f"{methods[0]} {path}")
    yield direct({"path": path}, 405, text, {"allow": ", ".join(methods)})


@lru_cache(maxsize=4)
def _about(release: str) -> str:
    return _json({"name": marks.NAME, "version": release, "extensions": marks.EXTENSIONS})


def _json(value: Any) -> str:
    return json.dumps(value)


def _header(name: str, value: str) -> Json:
    return {
        "header": {"key": name, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
