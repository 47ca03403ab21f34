"""A missing service is never a silent pass."""

from __future__ import annotations

import pytest

from tests.conftest import require_service


def test_a_missing_service_skips_with_its_command_or_fails_where_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_service("")
    monkeypatch.delenv("HOLDFAST_REQUIRE_SERVICES", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install it"):
        require_service("it is not installed; apt-get install it")
    monkeypatch.setenv("HOLDFAST_REQUIRE_SERVICES", "1")
    with pytest.raises(pytest.fail.Exception, match="apt-get install it"):
        require_service("it is not installed; apt-get install it")
