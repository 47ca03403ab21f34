"""Asking at an endpoint: one after the other, until one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent import credential_store
from holdfast.launch import joining, standby
from holdfast.system.certificates import Authority
from holdfast.wire import tokens
from holdfast.wire.errors import Unavailable
from holdfast.wire.tokens import ClusterAddress, TokenKind

ENDPOINTS = ("127.0.0.1:1", "127.0.0.1:2")


@pytest.mark.parametrize(
    ("kind", "enter", "module", "asks"),
    [
        (TokenKind.JOIN, joining.join, credential_store, "join"),
        (TokenKind.STANDBY, standby.lent, standby, "_ask"),
    ],
    ids=["join", "stand by"],
)
def test_every_endpoint_is_asked_in_one_loop_that_lives_on(
    kind: TokenKind,
    enter: Callable[[Path, str, str], object],
    module: object,
    asks: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked_in: list[asyncio.AbstractEventLoop] = []

    async def nobody(*_: object) -> None:
        asked_in.append(asyncio.get_running_loop())
        raise Unavailable("nobody is at this endpoint")

    monkeypatch.setattr(module, asks, nobody)
    store = tmp_path / "store"
    store.mkdir()
    authority = Authority.make(tmp_path / "authority", "reef")
    place = ClusterAddress(ENDPOINTS, "zk://127.0.0.1:1", f"file://{store}")
    token = tokens.join_token(authority, 60.0, None, place, kind)
    with pytest.raises(Unavailable, match="no coordinator of the cluster answers"):
        enter(tmp_path / "cluster", token, "here")
    first, second = asked_in
    assert first is second
    assert first.is_running()
