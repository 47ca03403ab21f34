"""Requests that no client sends: whatever is in them, the broker answers or ends the connection."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topics.broker.protocol import apis
from holdfast.topics.broker.protocol.apis import APIS, Api
from holdfast.topics.broker.protocol.cluster import ApiVersionsRequest
from tests.servers.broker import BrokerServer
from tests.unit.topics.test_codec import messages

FRAMES = 2_000
FRAME_BYTES_MAX = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerServer]:
    with BrokerServer(tmp_path_factory.mktemp("broker")) as server:
        yield server


def assert_well(broker: BrokerServer) -> None:
    """It answers, and nothing that was asked was a surprise."""
    with broker.wire() as wire:
        assert wire.call(apis.API_VERSIONS, 3, ApiVersionsRequest()).api_keys
    output = (broker.folder / "output.log").read_text()
    assert "was not handled" not in output, output[-3000:]
    assert "Traceback" not in output, output[-3000:]


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=5)
@given(data=st.data())
def test_a_message_with_any_values_is_answered_or_refused(
    broker: BrokerServer, api: Api, data: st.DataObject
) -> None:
    first = max(api.first, api.decoded_from)
    version = data.draw(st.integers(first, api.last))
    with broker.wire() as wire:
        wire.send(api, version, data.draw(messages(api.request, version)))
    assert_well(broker)


def test_frames_of_noise_do_no_harm(broker: BrokerServer) -> None:
    chance = random.Random(1)
    wire = broker.wire()
    for _ in range(FRAMES):
        api = chance.choice(list(APIS.values()))
        head = struct.pack("!hhih", api.key, chance.randint(api.first, api.last), 1, -1)
        frame = head + chance.randbytes(chance.randrange(FRAME_BYTES_MAX))
        try:
            wire.socket.sendall(struct.pack("!i", len(frame)) + frame)
        except OSError:
            wire.socket.close()
            wire = broker.wire()
    wire.socket.close()
    assert_well(broker)
