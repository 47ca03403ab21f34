"""KServe's client, over REST and gRPC: `python kserve_calls.py HTTP_ADDRESS GRPC_ADDRESS`."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import httpx
from given import GIVEN, OUTPUTS
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)


def request(binary: bool, model: str = "digits", width: int = 4) -> InferRequest:
    made = []
    for name, datatype, array in GIVEN:
        held = array[:, :width] if name == "x" else array
        tensor = InferInput(name, list(held.shape), datatype)
        tensor.set_data_from_numpy(held, binary_data=binary or datatype == "FP16")
        made.append(tensor)
    parameters = {"binary_data_output": True} if binary else None
    return InferRequest(model, made, request_id="r1", parameters=parameters)


def shown(answer: Any) -> dict[str, Any]:
    outputs: dict[str, Any] = {}
    for name in OUTPUTS:
        array = answer.get_output_by_name(name).as_numpy()
        if array.dtype == object:
            outputs[name] = [v.decode() if isinstance(v, bytes) else v for v in array.ravel()]
        else:
            outputs[name] = [str(array.dtype), list(array.shape), array.ravel().tolist()]
    return {
        "id": answer.id,
        "model": answer.model_name,
        "version": answer.model_version,
        "outputs": outputs,
    }


async def over_rest(address: str) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    base = f"http://{address}"
    seen: dict[str, Any] = {
        "live": await client.is_server_live(base),
        "ready": await client.is_server_ready(base),
        "model_ready": await client.is_model_ready(base, "digits"),
        "raw": shown(await client.infer(base, request(True), model_name="digits")),
        "json": shown(await client.infer(base, request(False), model_name="digits")),
    }
    for name, asked in (("shape", request(True, width=3)), ("model", request(True, "nobody"))):
        try:
            await client.infer(base, asked, model_name=asked.model_name)
        except httpx.HTTPStatusError as error:
            seen[name] = [error.response.status_code, error.response.json()["error"]]
    await client.close()
    return seen


async def over_grpc(address: str) -> dict[str, Any]:
    client = InferenceGRPCClient(address, retries=0)
    seen: dict[str, Any] = {
        "live": await client.is_server_live(),
        "ready": await client.is_server_ready(),
        "model_ready": await client.is_model_ready("digits"),
        "raw": shown(await client.infer(request(True))),
    }
    for name, asked in (("shape", request(True, width=3)), ("model", request(True, "nobody"))):
        try:
            await client.infer(asked)
        except grpc.RpcError as error:
            seen[name] = [error.code().name, error.details()]
    await client.close()
    return seen


async def main(http_address: str, grpc_address: str) -> None:
    print(
        json.dumps({"rest": await over_rest(http_address), "grpc": await over_grpc(grpc_address)})
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
