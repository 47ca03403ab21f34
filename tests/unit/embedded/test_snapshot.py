"""A snapshot gives back the tree that was written, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.coordination.embedded.folder import snapshot_path
from holdfast.coordination.embedded.snapshot import (
    Row,
    decode_block,
    encode_blocks,
    publish_snapshot,
    read_snapshot,
    verify_snapshot,
)
from holdfast.coordination.embedded.tree import Tree
from holdfast.wire.errors import Corrupt
from holdfast.wire.limits import NODES_MAX
from tests.unit.embedded.histories import changed, flipped, trees

values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(max_size=5_000)


def tree_at(zxid: int, data: bytes = b"data") -> Tree:
    *_, tree = trees(zxid, data)
    return tree


@settings(max_examples=50)
@given(st.lists(st.lists(values, max_size=8).map(tuple), max_size=40))
def test_rows_of_any_shape_come_back_as_they_were(rows: list[Row]) -> None:
    blocks = list(encode_blocks(rows))
    assert [row for block, _ in blocks for row in decode_block(block)] == rows
    assert sum(count for _, count in blocks) == len(rows)


def test_more_shapes_than_a_block_has_numbers_for_take_more_blocks() -> None:
    rows: list[Row] = [(1,) * length for length in range(1, 600)]
    blocks = list(encode_blocks(rows))
    assert len(blocks) > 1
    assert [row for block, _ in blocks for row in decode_block(block)] == rows


def test_a_tree_of_many_blocks_comes_back_with_its_time(tmp_path: Path) -> None:
    tree = tree_at(200, b"x" * 2_000)
    path = publish_snapshot(tmp_path, tree, 1234)
    assert path == snapshot_path(tmp_path, 200)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    found = read_snapshot(path, NODES_MAX)
    assert found.tree.digest() == tree.digest() == found.digest
    assert found.tree.last_zxid == 200
    assert found.time_ms == 1234
    verify_snapshot(path)


def test_every_flipped_byte_of_a_snapshot_is_refused(tmp_path: Path) -> None:
    path = publish_snapshot(tmp_path, tree_at(9), 1234)
    good = path.read_bytes()
    for offset in range(len(good)):
        with changed(path, flipped(good, offset)):
            with pytest.raises(Corrupt) as caught:
                read_snapshot(path, NODES_MAX)
            assert str(path) in caught.value.what
            with pytest.raises(Corrupt):
                verify_snapshot(path)


def test_every_cut_and_every_longer_snapshot_is_refused(tmp_path: Path) -> None:
    path = publish_snapshot(tmp_path, tree_at(9), 1234)
    good = path.read_bytes()
    for wrong in [*(good[:length] for length in range(len(good))), good + b"\0", good + good]:
        with changed(path, wrong), pytest.raises(Corrupt):
            read_snapshot(path, NODES_MAX)


def test_a_snapshot_under_another_name_is_refused(tmp_path: Path) -> None:
    path = publish_snapshot(tmp_path, tree_at(9), 1234)
    other = path.rename(snapshot_path(tmp_path, 10))
    with pytest.raises(Corrupt, match="name"):
        read_snapshot(other, NODES_MAX)
