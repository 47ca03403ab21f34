"""The REST surface as its document describes it, tried by schemathesis through a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_service
from tests.integration.served_pair import ServedPair
from tests.integration.test_serving_clients_schema import try_schema
from tests.servers.envoy import envoy_missing

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPair]:
    require_service(envoy_missing())
    made = ServedPair(tmp_path_factory.mktemp("schema"), alone=True)
    try:
        yield made
    finally:
        made.close()


def test_schemathesis_finds_no_failure_through_the_gateway(
    served: ServedPair, tmp_path: Path
) -> None:
    from openapi_spec_validator import validate

    document = served.gateway.get("/openapi.json").json()
    validate(document)
    assert "/metrics" not in document["paths"]
    # What is no method of HTTP is no HTTP to Envoy: 400, and not 405.
    methods = ["GET", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "TRACE"]
    (tmp_path / "schemathesis.toml").write_text(
        f"[phases.coverage]\nunexpected-methods = {methods}\n"
    )
    try_schema(served.gateway.port, tmp_path, len(document["paths"]))
    assert served.replicas[0].alive and served.replicas[0].ready()
