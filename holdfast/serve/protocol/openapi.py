"""The REST surface of a replica as an OpenAPI 3.1 document. Pure: made from the signature.

`document(...)` describes what is served: the shapes and datatypes of the model are in it, so that
a client made from it sends what fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from holdfast.models.records import TensorSpec, Version
from holdfast.serve.protocol.marks import NAME, REGION, REPLICA, VARIANT, VERSION, release
from holdfast.serve.protocol.rest import BINARY, HEADER_LENGTH, JSON
from holdfast.serve.protocol.tensors import DTYPES, element_of

Schema = dict[str, Any]

_ELEMENTS: Final = {float: "number", int: "integer", bool: "boolean", str: "string"}
_VALUES: Final[dict[type, Any]] = {float: 0.5, int: 1, bool: True, str: "text"}
_PARAMETERS: Final[Schema] = {
    "anyOf": [{"type": "object", "additionalProperties": True}, {"type": "null"}]
}
_VERSION_NUMBER: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,9}$"}


def document(
    record: Version | None, *, model: str, names: tuple[str, ...] = (), gateway: bool = False
) -> Schema:
    """The surface for a model. `record`: the version whose signature is described; None: none is
    loaded yet, and any tensors are. `names`: what the model may be called besides. `gateway`: it is
    asked for through one, which passes not everything on."""
    known = sorted({model, *names})
    paths: dict[str, Schema] = {
        "/v2": {"get": _get("What this server is.", "ServerMetadata")},
        "/v2/health/live": {"get": _health("Whether the process works.", "live")},
        "/v2/health/ready": {"get": _health("Whether it answers requests.", "ready")},
        "/openapi.json": {"get": _get("This document.", None)},
        "/v2/models/stats": {"get": _get("What was counted of each version.", "Statistics")},
        "/v2/repository/index": {"post": _get("What is loaded.", "Index")},
        "/v1/models": {"get": _get("What is served, by KServe's protocol v1.", "V1Models")},
    }
    if not gateway:
        paths["/holdfast/stats"] = {"get": _get("What was counted.", None)}
        paths["/metrics"] = {"get": _text("What was counted, for Prometheus.")}
    for path, version in (
        ("/v2/models/{model}", False),
        ("/v2/models/{model}/versions/{version}", True),
    ):
        given = _given(known, record, version)
        paths[path] = {
            "parameters": given,
            "get": _of_model("What the model takes.", "ModelMetadata"),
        }
        paths[f"{path}/ready"] = {
            "parameters": given,
            "get": _health("Whether this model answers.", "ready", missing=True),
        }
        paths[f"{path}/infer"] = {"parameters": given, "post": _infer(record)}
        paths[f"{path}/config"] = {
            "parameters": given,
            "get": _of_model("What the model is, as Triton describes it.", "ModelConfig"),
        }
        paths[f"{path}/stats"] = {
            "parameters": given,
            "get": _of_model("What was counted of it.", "Statistics"),
        }
    paths |= _by_operators(known)
    paths |= _v1(known, record)
    for path, version in (
        ("/predict/{model}", False),
        ("/predict/{model}/versions/{version}", True),
    ):
        paths[path] = {"parameters": _given(known, record, version), "post": _predict(record)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"{model}, served by Holdfast",
            "version": str(record.number) if record is not None else "0",
            "summary": "The Open Inference Protocol v2, and a plain form for people.",
            "x-server": f"{NAME} {release()}",
        },
        "paths": paths,
        "components": {"schemas": _schemas(record), "headers": _headers()},
    }


# --- paths ---------------------------------------------------------------------------------------


def _given(models: list[str], record: Version | None, version: bool) -> list[Schema]:
    parameters = [_path("model", {"type": "string", "enum": models})]
    if version:
        parameters.append(_path("version", _VERSION_NUMBER))
        if record is not None:
            parameters[-1]["example"] = str(record.number)
    return parameters


def _by_operators(known: list[str]) -> dict[str, Schema]:
    """Through a gateway these need an operator's key."""
    parameters = [_path("model", {"type": "string", "enum": known})]
    load = _of_model("Say that the model is loaded; what is not served is not loaded so.", "Empty")
    unload = _of_model("Refused: services decide what is loaded.", "Empty")
    unload["responses"]["400"] = _error("What ends a service instead.")
    for operation in (load, unload):
        operation["responses"]["403"] = _error("It needs an operator's key.")
    return {
        "/v2/repository/models/{model}/load": {"parameters": parameters, "post": load},
        "/v2/repository/models/{model}/unload": {"parameters": parameters, "post": unload},
    }


def _v1(known: list[str], record: Version | None) -> dict[str, Schema]:
    """KServe's protocol v1."""
    parameters = [_path("model", {"type": "string", "enum": known})]
    ready = _of_model("Whether the model answers.", "V1Model")
    ready["responses"]["503"] = {"description": "No.", "content": _json(_ref("V1Model"))}
    rows = _plain_example(record)
    example = None if rows is None else {"inputs": rows}
    predict: Schema = {
        "summary": "Compute: rows (`instances`) or whole tensors (`inputs`).",
        "requestBody": _body("V1Request", example),
        "responses": _answered(_json(_ref("V1Response"))),
    }
    return {
        "/v1/models/{model}": {"parameters": parameters, "get": ready},
        "/v1/models/{model}:predict": {"parameters": parameters, "post": predict},
    }


def _path(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _json(schema: Schema) -> Schema:
    return {JSON: {"schema": schema}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _error(words: str) -> Schema:
    return {"description": words, "content": _json(_ref("Error"))}


def _get(words: str, schema: str | None) -> Schema:
    content = _json(_ref(schema) if schema else {"type": "object"})
    return {"summary": words, "responses": {"200": {"description": words, "content": content}}}


def _text(words: str) -> Schema:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {"summary": words, "responses": {"200": {"description": words, "content": content}}}


def _of_model(words: str, schema: str) -> Schema:
    found = _get(words, schema)
    found["responses"] |= _no_model()
    return found


def _no_model() -> Schema:
    return {
        "404": _error("There is no such model, or no such version of it."),
        "503": _error("The version is not loaded here now; another replica may have it."),
    }


def _health(words: str, field: str, *, missing: bool = False) -> Schema:
    schema = _object({field: {"type": "boolean"}}, [field])
    responses: Schema = {
        "200": {"description": "Yes.", "content": _json(schema)},
        "503": {"description": "No.", "content": _json(schema)},
    }
    if missing:
        responses["404"] = _error("There is no such model, or no such version of it.")
    return {"summary": words, "responses": responses}


def _answered(content: Schema) -> Schema:
    return {
        "200": {
            "description": "The outputs.",
            "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in _headers()},
            "content": content,
        },
        "400": _error("The request does not fit the model; the sentence says where."),
        "413": _error("The body is larger than the service takes, packed or unpacked."),
        "415": _error("The body is packed in a way that is not known."),
        **_no_model(),
        "500": _error("The model failed on this request."),
        "504": _error("The answer, or the body, did not come in time."),
    }


def _infer(record: Version | None) -> Schema:
    header = {
        "name": HEADER_LENGTH,
        "in": "header",
        "required": False,
        "description": "How many bytes of the body are JSON; raw tensors follow them.",
        "schema": {"type": "integer", "minimum": 0},
    }
    binary = {"schema": {"type": "string", "contentMediaType": BINARY}}
    return {
        "summary": "Compute: JSON, or JSON followed by raw tensors.",
        "parameters": [header],
        "requestBody": _body("InferRequest", _example(record)),
        "responses": _answered({**_json(_ref("InferResponse")), BINARY: binary}),
    }


def _predict(record: Version | None) -> Schema:
    return {
        "summary": "Compute: inputs by name, as people write them by hand.",
        "requestBody": _body("Plain", _plain_example(record)),
        "responses": _answered(_json({"type": "object"})),
    }


def _body(schema: str, example: Any) -> Schema:
    content = _json(_ref(schema))
    if example is not None:
        content[JSON]["example"] = example
    return {"required": True, "content": content}


# --- examples: one row, which the model takes -----------------------------------------------------


def _example(record: Version | None) -> Schema | None:
    if record is None:
        return None
    inputs = []
    for spec in record.signature.inputs:
        shape = [1 if size < 0 else size for size in spec.shape]
        data = [_VALUES[element_of(spec.datatype)]] * math.prod(shape)
        inputs.append({"name": spec.name, "shape": shape, "datatype": spec.datatype, "data": data})
    return {"inputs": inputs}


def _plain_example(record: Version | None) -> Schema | None:
    if record is None:
        return None
    return {spec.name: _nested(spec, 0) for spec in record.signature.inputs}


def _nested(spec: TensorSpec, axis: int) -> Any:
    if axis == len(spec.shape):
        return _VALUES[element_of(spec.datatype)]
    return [_nested(spec, axis + 1)] * (1 if spec.shape[axis] < 0 else spec.shape[axis])


# --- schemas -------------------------------------------------------------------------------------


def _object(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    return {"type": "object", "properties": dict(properties), "required": required}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _schemas(record: Version | None) -> Schema:
    inputs = record.signature.inputs if record is not None else ()
    text, shape = {"type": "string"}, _list({"type": "integer"})
    datatype = {"type": "string", "enum": sorted(DTYPES)}
    described = _object({"name": text, "datatype": datatype, "shape": shape}, ["name", "datatype"])
    output = _object({"name": text, "parameters": _PARAMETERS}, ["name"])
    tensor: Schema = {
        "name": text,
        "datatype": datatype,
        "shape": shape,
        "data": {"type": "array"},
    }
    answer = {"model_name": text, "model_version": text, "id": text}
    return {
        "Error": _object({"error": text}, ["error"]),
        "ServerMetadata": _object(
            {"name": text, "version": text, "extensions": _list(text)},
            ["name", "version", "extensions"],
        ),
        "ModelMetadata": _object(
            {
                "name": text,
                "versions": _list(text),
                "platform": text,
                "inputs": _list(described),
                "outputs": _list(described),
            },
            ["name", "platform", "inputs", "outputs"],
        ),
        "InferRequest": _object(
            {
                "id": {"type": ["string", "null"]},
                "parameters": _PARAMETERS,
                "inputs": _inputs(inputs),
                "outputs": {"anyOf": [_list(output), {"type": "null"}]},
            },
            ["inputs"],
        ),
        "InferResponse": _object(
            {**answer, "outputs": _list(_object(tensor, ["name", "datatype", "shape"]))},
            ["model_name", "model_version", "outputs"],
        ),
        **_other_schemas(),
        "Plain": _object(
            {spec.name: {"type": "array"} for spec in inputs}, [i.name for i in inputs]
        ),
    }


def _other_schemas() -> Schema:
    """Those of Triton's extensions and of the protocol v1."""
    text, number = {"type": "string"}, {"type": "integer"}
    tensor = _object(
        {"name": text, "data_type": text, "dims": _list(number)}, ["name", "data_type", "dims"]
    )
    counted = _object({"name": text, "version": text, "inference_count": number}, ["name"])
    entry = _object({"name": text, "version": text, "state": text}, ["name", "version", "state"])
    return {
        "Empty": {"type": "object", "maxProperties": 0},
        "ModelConfig": _object(
            {
                "name": text,
                "platform": text,
                "backend": text,
                "max_batch_size": number,
                "input": _list(tensor),
                "output": _list(tensor),
            },
            ["name", "platform", "input", "output"],
        ),
        "Statistics": _object({"model_stats": _list(counted)}, ["model_stats"]),
        "Index": _list(entry),
        "V1Models": _object({"models": _list(text)}, ["models"]),
        "V1Model": _object({"name": text, "ready": {"type": "boolean"}}, ["name", "ready"]),
        "V1Request": {
            "oneOf": [
                _object({"instances": {"type": "array", "minItems": 1}}, ["instances"]),
                _object({"inputs": {"type": ["array", "object"]}}, ["inputs"]),
            ]
        },
        "V1Response": _object({"predictions": {"type": ["array", "object"]}}, ["predictions"]),
    }


def _inputs(specs: tuple[TensorSpec, ...]) -> Schema:
    found = _list({"anyOf": [_input(spec) for spec in specs]}) if specs else _list({})
    return {**found, "minItems": len(specs), "maxItems": len(specs)} if specs else found


def _input(spec: TensorSpec) -> Schema:
    """One input. Its elements may be nested: JSON schema cannot tie their number to the shape."""
    sizes: list[Schema] = [
        {"minimum": 1, "type": "integer"} if size < 0 else {"const": size} for size in spec.shape
    ]
    shape: Schema = {"type": "array", "prefixItems": sizes, "items": False, "minItems": len(sizes)}
    element = {"type": _ELEMENTS[element_of(spec.datatype)]}
    return _object(
        {
            "name": {"const": spec.name},
            "datatype": {"const": spec.datatype},
            "shape": shape,
            "parameters": _PARAMETERS,
            "data": _list({"anyOf": [element, {"type": "array"}]}),
        },
        ["name", "datatype", "shape"],
    )


def _headers() -> Schema:
    words = {
        VERSION: "The version that answered.",
        VARIANT: "The variant of the rollout or A/B test that the request was in.",
        REPLICA: "The replica that answered.",
        REGION: "The region that it is in.",
    }
    return {
        name: {"description": text, "schema": {"type": "string"}} for name, text in words.items()
    }
