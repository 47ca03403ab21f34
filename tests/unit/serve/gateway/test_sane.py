"""What somebody wrote down, as Envoy can have it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.serve.gateway.state import literal, sane
from holdfast.serve.records import BreakerPolicy, Limits, ServiceSpec


def test_a_service_that_makes_sense_stays_as_it_is() -> None:
    service = ServiceSpec(
        "digits.v2", "mnist", "prod", keys=("ab" * 32,), sticky_header="X-User_Id"
    )
    assert sane(service) == service


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a?b", "a#", "%2e", "a" * 300, "-a", "a."])
def test_a_name_that_no_path_can_have_is_no_service(name: str) -> None:
    assert sane(ServiceSpec(name, "mnist", "prod")) is None


def test_a_lock_whose_keys_cannot_be_digests_stays_locked() -> None:
    found = sane(ServiceSpec("digits", "mnist", "prod", keys=("sesame", "AB" * 32)))
    assert found is not None
    assert found.keys


@given(st.floats(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=20))
def test_limits_are_numbers_that_envoy_can_hold(
    timeout_s: float, body: int, rate: float, header: str
) -> None:
    limits = Limits(timeout_s=timeout_s, body_bytes_max=body, rate_per_s=rate)
    found = sane(
        ServiceSpec("digits", "mnist", "prod", limits=limits, sticky_header=header, route_by=header)
    )
    assert found is not None
    assert 0 < found.limits.timeout_s <= 86_400
    assert 1 <= found.limits.body_bytes_max < 2**32
    assert 0 <= found.limits.rate_per_s < 2**32
    assert math.isfinite(found.limits.rate_per_s)
    assert found.sticky_header == found.route_by
    assert found.sticky_header in ("", header)
    assert not set(found.sticky_header) & set(" :,;\r\n%")


@given(st.integers(-(2**70), 2**70), st.floats(), st.floats(), st.floats())
def test_breakers_are_numbers_that_envoy_can_hold(
    count: int, open_s: float, most_s: float, percent: float
) -> None:
    given = BreakerPolicy(count, open_s, most_s, open_s, count, percent)
    found = sane(ServiceSpec("digits", "mnist", "prod", breaker=given))
    assert found is not None
    breaker = found.breaker
    assert 1 <= breaker.failures < 2**32 and 1 <= breaker.requests_max < 2**32
    assert 0 < breaker.open_s <= breaker.open_s_max <= 86_400
    assert 0 < breaker.connect_s <= 86_400 and 0 <= breaker.retry_percent <= 100


@given(st.text())
def test_a_literal_has_one_line_and_no_command(text: str) -> None:
    found = literal(text)
    assert found.isprintable()
    assert found.isascii()
    assert "%" not in found.replace("%%", "")
