"""How many gateways share an address of this machine."""

from __future__ import annotations

import pytest

from holdfast.launch.serving import GatewayAddress, sharing
from holdfast.wire.errors import Usage

HERE = GatewayAddress("127.0.0.1:8080", "eu")
THERE = GatewayAddress("127.0.0.1:8090")


def test_one_gateway_becomes_three_at_its_address() -> None:
    found = sharing({"gateway-1": HERE}, None, 3)
    assert found == {"gateway-1": HERE, "gateway-2": HERE, "gateway-3": HERE}


def test_of_three_the_oldest_stays() -> None:
    three = {f"gateway-{number}": HERE for number in (10, 9, 8)}
    assert sharing(three, None, 1) == {"gateway-8": HERE}


def test_only_the_address_that_was_named_is_shared_by_more() -> None:
    known = {"gateway-1": HERE, "gateway-2": THERE}
    assert sharing(known, THERE.listen, 2) == {**known, "gateway-3": THERE}
    assert sharing(known, None, 2) == {**known, "gateway-3": HERE, "gateway-4": THERE}


def test_as_many_as_there_are_change_nothing() -> None:
    known = {"gateway-1": HERE, "gateway-2": HERE}
    assert sharing(known, HERE.listen, 2) == known


def test_where_no_gateway_is_the_option_that_starts_one_is_told() -> None:
    with pytest.raises(Usage, match="--gateway HOST:PORT"):
        sharing({}, None, 2)
