"""Paths that a real ZooKeeper 3.8.0 took and refused."""

from __future__ import annotations

import pytest

from holdfast.coordination.embedded.paths import ancestors, is_valid

TAKEN = ["/", "/a", "/a/b", "/ ", "/...", "/..a", "/.a/b", "/a.", "/\xa0", "/\uf900", "/\uffef"]
REFUSED = [
    "",
    "a",
    "//",
    "/a/",
    "/a//b",
    "/.",
    "/..",
    "/a/./b",
    "/a/../b",
    "/\0",
    "/a\n",
    "/\x1f",
    "/\x7f",
    "/\x80",
    "/\x9f",
    "/\ud800",
    "/\ue000",
    "/\uf8ff",
    "/\ufff0",
    "/\ufffd",
    "/\U0001f600",
]


@pytest.mark.parametrize("path", TAKEN)
def test_a_path_that_zookeeper_takes_is_valid(path: str) -> None:
    assert is_valid(path)


@pytest.mark.parametrize("path", REFUSED)
def test_a_path_that_zookeeper_refuses_is_not_valid(path: str) -> None:
    assert not is_valid(path)


def test_ancestors_go_up_to_the_root() -> None:
    assert ancestors("/a/b/c") == ["/a/b", "/a", "/"]
    assert ancestors("/a") == ["/"]
    assert ancestors("/") == []
