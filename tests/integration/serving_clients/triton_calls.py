"""NVIDIA's client, over HTTP and gRPC: `python triton_calls.py http|grpc HOST:PORT`."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from given import GIVEN, OUTPUTS, X


def main(protocol: str, address: str) -> None:
    library = importlib.import_module(f"tritonclient.{protocol}")
    client = library.InferenceServerClient(address)
    seen: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "model_ready": client.is_model_ready("digits"),
        "version_ready": client.is_model_ready("digits", "1"),
        "missing_ready": safely(lambda: client.is_model_ready("digits", "99")),
        "server": plain(client.get_server_metadata(), protocol),
        "model": plain(client.get_model_metadata("digits"), protocol),
    }
    forms = [("raw", True)] + ([("json", False)] if protocol == "http" else [])
    for form, raw in forms:
        seen[form] = inferred(library, client, protocol, raw)
    seen["errors"] = errors(library, client, protocol)
    client.close()
    print(json.dumps(seen))


def inputs(library: Any, protocol: str, raw: bool) -> list[Any]:
    made = []
    for name, datatype, array in GIVEN:
        tensor = library.InferInput(name, array.shape, datatype)
        # The client itself refuses FP16 in JSON.
        own = {"binary_data": raw or datatype == "FP16"} if protocol == "http" else {}
        tensor.set_data_from_numpy(array, **own)
        made.append(tensor)
    return made


def inferred(library: Any, client: Any, protocol: str, raw: bool) -> dict[str, Any]:
    wanted = [
        library.InferRequestedOutput(
            name, **({"binary_data": raw or name == "half_out"} if protocol == "http" else {})
        )
        for name in OUTPUTS
    ]
    result = client.infer("digits", inputs(library, protocol, raw), request_id="r1", outputs=wanted)
    everything = client.infer("digits", inputs(library, protocol, raw), model_version="1")
    answer = plain(result.get_response(), protocol)
    return {
        "id": answer.get("id"),
        "model": answer["model_name"],
        "version": answer["model_version"],
        "outputs": {name: shown(result.as_numpy(name)) for name in OUTPUTS},
        "all": [shown(everything.as_numpy(name)) for name in OUTPUTS],
    }


def errors(library: Any, client: Any, protocol: str) -> dict[str, Any]:
    wrong = library.InferInput("x", [1, 3], "FP32")
    wrong.set_data_from_numpy(X[:1, :3])
    given = inputs(library, protocol, True)
    return {
        "shape": safely(lambda: client.infer("digits", [wrong])),
        "missing_input": safely(lambda: client.infer("digits", given[:1])),
        "model": safely(lambda: client.infer("nobody", given)),
        "version": safely(lambda: client.infer("digits", given, model_version="99")),
        "output": safely(
            lambda: client.infer("digits", given, outputs=[library.InferRequestedOutput("no")])
        ),
        "metadata": safely(lambda: client.get_model_metadata("nobody")),
    }


def safely(call: Any) -> Any:
    """What a call gives; of the client's own error its status and its words."""
    from tritonclient.utils import InferenceServerException

    try:
        given = call()
    except InferenceServerException as error:
        return {"status": str(error.status()), "message": str(error.message())}
    return given if isinstance(given, bool) else "no error"


def plain(value: Any, protocol: str) -> Any:
    if protocol == "http":
        return value
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(value, preserving_proto_field_name=True)


def shown(array: Any) -> Any:
    if array.dtype == object:
        return [value.decode() if isinstance(value, bytes) else value for value in array.ravel()]
    return [str(array.dtype), list(array.shape), array.ravel().tolist()]


if __name__ == "__main__":
    main(*sys.argv[1:])
