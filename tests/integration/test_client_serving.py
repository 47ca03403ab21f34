"""From a training script to answers, rolled out and back, by `holdfast.Client` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from holdfast import AsyncClient, Client
from holdfast.wire.errors import Missing, Refused, TerminalError, Usage
from tests.conftest import require_service
from tests.integration.clusters import PATIENT, Home, running
from tests.servers import free_port
from tests.servers.envoy import envoy_missing
from tests.waiting import eventually

pytestmark = pytest.mark.engines

WAIT_S = 240.0
TRAIN = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from holdfast import train

x = torch.linspace(-1, 1, 64)[:, None]


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x):
        return self.layer(x)


def main(run):
    model = Line().to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=run.settings.lr)
    run.track(model=model, optimizer=optimizer)
    for batch in run.batches(TensorDataset(x, 3 * x), lane_batch=8, epochs=20):
        run.step(functional.mse_loss(model(batch.x), batch.y))
    run.publish(model, "line", example=x[:2])


train.launch(main, lanes=2, settings={"lr": 0.5})
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    require_service(envoy_missing())
    made = Home(tmp_path / "cluster", PATIENT)
    try:
        made.up()
        yield made
    finally:
        made.end()


def slope(outputs: dict[str, list[list[float]]]) -> float:
    """Of the line that was learned, from the answers for 0 and 1."""
    ((low,), (high,)) = next(iter(outputs.values()))
    return high - low


def test_a_model_is_trained_served_asked_scaled_rolled_out_and_back_from_a_thread_and_a_loop(
    home: Home, tmp_path: Path
) -> None:
    script = tmp_path / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(TRAIN)
    inputs = {"x": np.array([[0.0], [1.0]], dtype=np.float32)}
    with Client(home.cluster.folder) as client:
        good = client.submit(script, workers=2, lanes=2)
        poor = client.submit(script, name="poor", lanes=2, settings={"lr": 0.001})
        good.result(WAIT_S)
        assert client.models()["line"].newest >= 1
        poor.result(WAIT_S)
        assert client.models()["line"].newest == 2
        gateway = f"127.0.0.1:{free_port()}"
        service = client.serve("line@1", replicas=1, gateway=gateway, canary="no", key=True)
        status = service.wait_ready()
        assert (status.version, status.settled, status.urls) == (1, True, (f"http://{gateway}",))
        first = service.predict(inputs)
        assert service.answer(inputs).version == 1
        many = [service.predict_async(inputs) for _ in range(100)]
        assert all(one.result(WAIT_S) == first for one in many)
        with pytest.raises(TerminalError, match="line answered 401"):
            client.service("line").predict(inputs)
        with pytest.raises(TerminalError, match="line answered 400"):
            service.predict({"z": [1.0]})
        with pytest.raises(Refused, match="has no version to go back to"):
            service.rollback()
        with pytest.raises(Missing, match="lien"):
            client.service("lien")
        with pytest.raises(Usage, match="serve has no option holt"):
            client.serve("line", holt="3s")  # type: ignore[call-arg]
        changed = client.serve("line", timeout=7)
        changed.wait_ready()
        assert changed.observe().service.limits.timeout_s == 7.0
        service.scale(2)
        eventually(lambda: service.status().ready == 2, "two replicas", WAIT_S)
        service.rollout(2)
        assert service.wait_ready().version == 2
        second = service.predict(inputs)
        assert second != first
        slopes = sorted(abs(slope(each) - 3) for each in (first, second))
        assert slopes[0] < 0.1 < slopes[1], "one of the two has learned"
        asyncio.run(in_a_loop(home, service.key, inputs, first))
        service.stop()
        assert client.services() == {}
    eventually(lambda: not serving(home), "gateway and controller have ended", WAIT_S)


async def in_a_loop(home: Home, key: str, inputs: object, first: object) -> None:
    """Back to the first version, and many requests at once."""
    async with AsyncClient(home.cluster.folder) as client:
        service = await client.service("line")
        assert (await service.status()).version == 2
        await service.rollback()
        assert (await service.wait_ready()).version == 1
        asked = [service.predict(inputs, key=key) for _ in range(100)]
        assert all(answer == first for answer in await asyncio.gather(*asked))
        await service.scale(1)
        async for status in service.watch():
            if status.replicas == 1:
                break


def serving(home: Home) -> list[str]:
    commands = running(home.cluster.folder).values()
    return [one for one in commands if "gateway" in one or "controller" in one or "envoy" in one]
