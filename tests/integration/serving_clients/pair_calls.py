"""Published clients before two services, `digits` and `words` (of the model `shout`), at one
address and without any header: `python pair_calls.py http|grpc|aio|kserve HOST:PORT`."""

from __future__ import annotations

import asyncio
import importlib
import json
import queue
import sys
from typing import Any

import numpy as np
from triton_calls import plain, safely

X = np.arange(1024, dtype=np.float32).reshape(256, 4)
WORDS = np.array([[b"hello"], [b"world"]], object)
PACKINGS = (None, "gzip", "deflate")


def tensors(library: Any, array: Any) -> list[Any]:
    name, datatype = ("x", "FP32") if array is X else ("word", "BYTES")
    tensor = library.InferInput(name, array.shape, datatype)
    tensor.set_data_from_numpy(array)
    return [tensor]


def shown(result: Any) -> Any:
    """Whether the numbers are right, or the words."""
    doubled = result.as_numpy("y")
    if doubled is not None:
        return bool((doubled == X * 2).all())
    return [value.decode() for value in result.as_numpy("loud").ravel()]


def packed(protocol: str, packing: str | None) -> dict[str, Any]:
    if packing is None:
        return {}
    if protocol == "grpc":
        return {"compression_algorithm": packing}
    return {
        "request_compression_algorithm": packing,
        "response_compression_algorithm": packing,
    }


def triton(protocol: str, address: str) -> dict[str, Any]:
    library = importlib.import_module(f"tritonclient.{protocol}")
    client = (
        library.InferenceServerClient(address, network_timeout=60.0)
        if protocol == "http"
        else (library.InferenceServerClient(address))
    )
    seen: dict[str, Any] = {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "server": plain(client.get_server_metadata(), protocol)["name"],
    }
    for name, array in (("digits", X), ("words", WORDS), ("shout", WORDS)):
        seen[name] = {
            "ready": client.is_model_ready(name),
            "metadata": plain(client.get_model_metadata(name), protocol)["name"],
            "config": plain(client.get_model_config(name), protocol),
            "answers": [
                shown(client.infer(name, tensors(library, array), **packed(protocol, packing)))
                for packing in PACKINGS
            ],
            "statistics": plain(client.get_inference_statistics(name), protocol),
            "load": safely(lambda name=name: client.load_model(name)),
            "unload": safely(lambda name=name: client.unload_model(name)),
        }
    operator = {"headers": {"authorization": "Bearer operator"}}
    seen["operator"] = [
        safely(lambda: client.load_model("digits", **operator)),
        safely(lambda: client.unload_model("digits", **operator)),
    ]
    seen["index"] = plain(client.get_model_repository_index(), protocol)
    seen["nobody"] = [
        safely(lambda: client.infer("nobody", tensors(library, X))),
        safely(lambda: client.get_model_config("nobody")),
    ]
    if protocol == "grpc":
        seen["streams"] = [streamed(library, client, packing) for packing in (None, "gzip")]
    client.close()
    return seen


def streamed(library: Any, client: Any, packing: str | None) -> list[Any]:
    """Three requests of one model, then one of another."""
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(
        callback=lambda result, error: answers.put((result, error)), compression_algorithm=packing
    )
    seen = []
    for name, array in (("shout", WORDS), ("words", WORDS), ("digits", X), ("shout", WORDS)):
        client.async_stream_infer(name, tensors(library, array))
        result, error = answers.get(timeout=60)
        seen.append(shown(result) if error is None else str(error.message()))
    client.stop_stream()
    return seen


async def over_aio(address: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for protocol in ("http", "grpc"):
        library = importlib.import_module(f"tritonclient.{protocol}.aio")
        base = importlib.import_module(f"tritonclient.{protocol}")
        async with library.InferenceServerClient(address) as client:
            seen[protocol] = {"live": await client.is_server_live()}
            for name, array in (("digits", X), ("words", WORDS)):
                answers = await asyncio.gather(
                    *(
                        client.infer(name, tensors(base, array), **packed(protocol, packing))
                        for packing in PACKINGS
                    )
                )
                seen[protocol][name] = [shown(each) for each in answers]
            if protocol == "grpc":
                seen["stream"] = await aio_stream(base, client)
    return seen


async def aio_stream(library: Any, client: Any) -> list[Any]:
    async def asked() -> Any:
        for _ in range(3):
            yield {"model_name": "shout", "inputs": tensors(library, WORDS)}

    seen = []
    async for result, error in client.stream_infer(asked()):
        seen.append(shown(result) if error is None else str(error.message()))
    return seen


async def over_kserve(address: str) -> dict[str, Any]:
    from kserve import (
        InferenceGRPCClient,
        InferenceRESTClient,
        InferInput,
        InferRequest,
        RESTConfig,
    )

    def request(name: str, array: Any) -> Any:
        key, datatype = ("x", "FP32") if array is X else ("word", "BYTES")
        tensor = InferInput(key, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, binary_data=True)
        return InferRequest(name, [tensor], parameters={"binary_data_output": True})

    def answer(found: Any, array: Any) -> Any:
        output = found.get_output_by_name("y" if array is X else "loud").as_numpy()
        if array is X:
            return bool((output == X * 2).all())
        return [value.decode() if isinstance(value, bytes) else value for value in output.ravel()]

    base = f"http://{address}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    old = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
    calls = InferenceGRPCClient(address, retries=0)
    seen: dict[str, Any] = {
        "live": [await rest.is_server_live(base), await calls.is_server_live()],
        "ready": [await rest.is_server_ready(base), await calls.is_server_ready()],
    }
    for name, array in (("digits", X), ("words", WORDS)):
        asked = request(name, array)
        seen[name] = {
            "ready": [await rest.is_model_ready(base, name), await calls.is_model_ready(name)],
            "rest": answer(await rest.infer(base, asked, model_name=name), array),
            "grpc": answer(await calls.infer(asked), array),
        }
    one = await old.infer(base, {"instances": [[1.0, 2.0, 3.0, 4.0]]}, model_name="digits")
    two = await old.infer(base, {"instances": [{"word": ["hello"]}]}, model_name="words")
    seen["v1"] = [one, two, await old.is_model_ready(base, "digits")]
    await rest.close()
    await old.close()
    await calls.close()
    return seen


def main(way: str, address: str) -> None:
    if way == "aio":
        seen = asyncio.run(over_aio(address))
    elif way == "kserve":
        seen = asyncio.run(over_kserve(address))
    else:
        seen = triton(way, address)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
