"""Calls of gRPC with bytes as they are: what is sent and answered is the test's own business."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc


def unary(channel: grpc.Channel, method: str) -> Callable[..., bytes]:
    """One request, one answer."""
    made: Callable[..., Any] = channel.unary_unary(
        method, request_serializer=bytes, response_deserializer=bytes
    )
    return made


def streams(channel: grpc.Channel, method: str) -> Callable[..., Iterator[bytes]]:
    """A stream of each."""
    made: Callable[..., Any] = channel.stream_stream(
        method, request_serializer=bytes, response_deserializer=bytes
    )
    return made
