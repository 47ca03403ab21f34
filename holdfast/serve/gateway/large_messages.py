"""A gRPC message that is too large, in our words. Pure: a filter for Envoy.

gRPC itself refuses such a message at its announced length, before a replica sees anything of it; it
says which length is allowed, and not which command changes that. The answer passes here, and the
gateway puts its own in its place, with what gRPC said as the reason.
"""

from __future__ import annotations

from typing import Final

from holdfast.serve.gateway import local_replies
from holdfast.serve.gateway.clusters import TYPE, Json

FILTER: Final = "envoy.filters.http.custom_response"
# What gRPC says, whichever way the message came: `SERVER: Received message larger than max (…)`.
_SAID: Final = "larger than max"
_TEXT: Final = local_replies.text(
    "the message is larger than the service takes",
    why="%RESP(GRPC-MESSAGE)% bytes",
    fix="send less at once, or: holdfast serve SERVICE --body-max SIZE",
)


def http_filter() -> Json:
    """The filter as the listener has it: on no route that does not ask for it."""
    reply: Json = {
        "@type": TYPE
        + "envoy.extensions.http.custom_response.local_response_policy.v3.LocalResponsePolicy",
        "status_code": local_replies.OWN_TOO_LARGE,
        "body_format": {"text_format_source": {"inline_string": _TEXT}},
    }
    refused: Json = {
        "single_predicate": {
            "input": {
                "name": "said",
                "typed_config": {
                    "@type": TYPE + "envoy.type.matcher.v3.HttpResponseHeaderMatchInput",
                    "header_name": "grpc-message",
                },
            },
            "value_match": {"contains": _SAID},
        }
    }
    action = {"action": {"name": "too-large", "typed_config": reply}}
    return {
        "name": FILTER,
        "typed_config": {
            "@type": TYPE + "envoy.extensions.filters.http.custom_response.v3.CustomResponse",
            "custom_response_matcher": {
                "matcher_list": {"matchers": [{"predicate": refused, "on_match": action}]}
            },
        },
        "disabled": True,
    }


def enabled() -> Json:
    """On a route of gRPC: that such answers are looked for."""
    return {"@type": TYPE + "envoy.config.route.v3.FilterConfig", "config": {}}
