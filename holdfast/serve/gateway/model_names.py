"""gRPC by the name of its model. Pure: a filter for Envoy, and the routes that its header chooses.

The name stands in the first message of a call. `wasm/model_name.c` reads it there, before Envoy has
chosen whom to ask, and says it as a header. Only calls that could go to several services pass
through it. `docs/decisions/0024` has the other ways, and why not.
"""

from __future__ import annotations

import base64
from functools import cache
from importlib import resources
from typing import Final

from holdfast.serve.gateway.clusters import TYPE, Json

FILTER: Final = "envoy.filters.http.wasm"
MODEL_HEADER: Final = "x-holdfast-model"
_PROGRAM: Final = "model_name.wasm"


@cache
def http_filter() -> Json:
    """The filter as the listener has it: on no route that does not ask for it."""
    code = resources.files(__package__).joinpath("wasm", _PROGRAM).read_bytes()
    machine: Json = {
        "vm_id": "model_name",
        "runtime": "envoy.wasm.runtime.v8",
        "code": {"local": {"inline_bytes": base64.b64encode(code).decode()}},
    }
    plugin: Json = {
        "name": "model_name",
        "vm_config": machine,
        # Headers wait for the message; else both would.
        "allow_on_headers_stop_iteration": True,
        # Without it requests go on, and are told that no service has their model.
        "failure_policy": "FAIL_OPEN",
    }
    return {
        "name": FILTER,
        "typed_config": {
            "@type": TYPE + "envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": plugin,
        },
        "disabled": True,
    }


def enabled() -> Json:
    """On a route: that the name is read there."""
    return {"@type": TYPE + "envoy.config.route.v3.FilterConfig", "config": {}}


def match(name: str, prefix: str = "/") -> Json:
    """Calls whose message names this model."""
    header = {"name": MODEL_HEADER, "string_match": {"exact": name}}
    return {"prefix": prefix, "grpc": {}, "headers": [header]}
