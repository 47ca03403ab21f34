"""Requests with large bodies, over HTTP and gRPC, as clients send them."""

from __future__ import annotations

import json
import socket
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import grpc
import numpy as np
from numpy.typing import NDArray

from bench.serving.connections import Address
from bench.serving.replies import Reply, take
from holdfast.models.records import Signature, TensorSpec
from holdfast.wire.proto import inference_pb2 as pb

MODEL: Final = "bodies"
SIGNATURE: Final = Signature(
    (TensorSpec("x", "UINT8", (-1,)),),
    (TensorSpec("crc", "INT64", (1,)), TensorSpec("back", "UINT8", (-1,))),
    batches=False,
)
CODE: Final = '''
import zlib

import numpy as np

def predict(inputs):
    """The checksum of what came, and what came."""
    x = inputs["x"]
    return {"crc": np.array([zlib.crc32(x.data)], dtype=np.int64), "back": x}
'''
PATIENCE_S: Final = 300.0
_PIECE_BYTES: Final = 1024 * 1024
_METHOD: Final = "/inference.GRPCInferenceService/ModelInfer"
_UNBOUNDED: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)

Array = NDArray[np.uint8]


@dataclass(frozen=True)
class Refusal:
    """What a client is told instead of an answer: `status` of HTTP, or gRPC's code by name."""

    status: str
    words: str


@dataclass(frozen=True)
class Answered:
    """An answer, and whether it is right: the checksum, and with `back` all that was sent."""

    right: bool
    took_s: float


class Client:
    """Asks the model `bodies` behind a gateway."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(f"{address[0]}:{address[1]}", options=_UNBOUNDED)

    def close(self) -> None:
        self._channel.close()

    def by_http(self, x: Array, *, back: bool = False, chunked: bool = False) -> Answered | Refusal:
        """As a raw tensor behind its JSON. `chunked`: without a length."""
        began_s = time.monotonic()
        tensor = {"name": "x", "datatype": "UINT8", "shape": [len(x)]}
        wanted: list[dict[str, object]] = [{"name": "crc"}]
        wanted += [{"name": "back", "parameters": {"binary_data": True}}] if back else []
        asked = {"inputs": [{**tensor, "parameters": {"binary_data_size": len(x)}}]}
        head = json.dumps({**asked, "outputs": wanted}).encode()
        reply = _exchanged(self._address, head, x, chunked=chunked)
        if reply.status != 200:
            return Refusal(str(reply.status), reply.body.decode())
        said = reply.header("inference-header-content-length")
        size = int(said) if said else len(reply.body)
        outputs = json.loads(reply.body[:size])["outputs"]
        right = outputs[0]["data"] == [zlib.crc32(x.data)]
        if back:
            right = right and bool(np.array_equal(np.frombuffer(reply.body, np.uint8)[size:], x))
        return Answered(right, time.monotonic() - began_s)

    def by_grpc(self, x: Array, *, back: bool = False) -> Answered | Refusal:
        began_s = time.monotonic()
        message = pb.ModelInferRequest(model_name=MODEL, raw_input_contents=[x.tobytes()])
        message.inputs.add(name="x", datatype="UINT8", shape=[len(x)])
        for name in ("crc", "back") if back else ("crc",):
            message.outputs.add(name=name)
        call = self._channel.unary_unary(
            _METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        try:
            answer = call(message, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            return Refusal(error.code().name, error.details() or "")
        found = answer.raw_output_contents
        right = np.frombuffer(found[0], np.int64).tolist() == [zlib.crc32(x.data)]
        if back:
            right = right and bool(np.array_equal(np.frombuffer(found[1], np.uint8), x))
        return Answered(right, time.monotonic() - began_s)


def _exchanged(address: Address, head: bytes, x: Array, *, chunked: bool) -> Reply:
    """The answer. It is read while the body is sent: who refuses it does not wait for its end."""
    length = "transfer-encoding: chunked" if chunked else f"content-length: {len(head) + len(x)}"
    lines = [
        f"POST /v2/models/{MODEL}/infer HTTP/1.1",
        f"host: {address[0]}:{address[1]}",
        f"inference-header-content-length: {len(head)}",
        length,
    ]
    with socket.create_connection(address, PATIENCE_S) as link:
        sender = threading.Thread(
            target=_send, args=(link, "\r\n".join([*lines, "", ""]).encode(), head, x, chunked)
        )
        sender.start()
        try:
            stream = bytearray()
            while True:
                piece = link.recv(_PIECE_BYTES)
                if not piece:
                    raise ConnectionError(f"it was closed after {len(stream)} bytes of an answer")
                stream += piece
                reply = _whole(stream)
                if reply is not None:
                    return reply
        finally:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            sender.join()


def _whole(stream: bytearray) -> Reply | None:
    """The reply, once all of it is there; a large one is not looked at again with each piece."""
    end = stream.find(b"\r\n\r\n", 0, _PIECE_BYTES)
    if end < 0:
        return None
    head = bytes(stream[:end]).lower()
    at = head.find(b"content-length:")
    if at >= 0:
        length = int(head[at:].split(b"\r\n", 1)[0].split(b":")[1])
        if len(stream) < end + 4 + length:
            return None
    return take(stream, 0)


def _send(link: socket.socket, lines: bytes, head: bytes, x: Array, chunked: bool) -> None:
    body = x.data
    pieces: list[bytes | memoryview] = [
        head,
        *(body[at : at + _PIECE_BYTES] for at in range(0, len(x), _PIECE_BYTES)),
    ]
    with suppress(OSError):  # it was refused before its end
        link.sendall(lines)
        for piece in pieces:
            if chunked:
                link.sendall(b"%x\r\n" % len(piece))
            link.sendall(piece)
            if chunked:
                link.sendall(b"\r\n")
        if chunked:
            link.sendall(b"0\r\n\r\n")
