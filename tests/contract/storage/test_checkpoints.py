"""Parts, manifests and garbage over every store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

from holdfast.storage import Part, open_store, put_part, read_part
from holdfast.storage.garbage import MARKS, References, Sweeper, Swept
from holdfast.storage.keys import digest_of
from holdfast.storage.manifests import (
    Manifest,
    manifest_key,
    read_manifest,
    to_bytes,
    verify,
    write_manifest,
)
from holdfast.storage.parts import part_of
from holdfast.wire.errors import Corrupt, Missing, Refused, Usage
from tests.contract.storage.stores import StoreUnderTest


def a_manifest(store: StoreUnderTest) -> Manifest:
    shares = {
        worker: tuple(put_part(store.blobs, b"share %d part %d" % (worker, n)) for n in range(2))
        for worker in (12, 7)
    }
    return Manifest(job="a-job", step=40, view=3, shares=shares)


def test_a_part_of_memory_that_nobody_changes_is_the_same_part(store: StoreUnderTest) -> None:
    data = bytearray(range(256)) * 20_000
    part = put_part(store.blobs, memoryview(data), still=True)
    assert part == part_of(bytes(data))
    assert read_part(store.blobs, part) == bytes(data)


def test_a_part_is_named_by_its_content_and_verified_when_it_is_read(
    store: StoreUnderTest,
) -> None:
    part = put_part(store.blobs, b"bytes")
    name = digest_of(b"bytes").removeprefix("sha256:")
    assert part.key == f"parts/sha256/{name[:2]}/{name}"
    assert part == part_of(b"bytes") == Part(part.key, 5, digest_of(b"bytes"))
    assert read_part(store.another(), part) == b"bytes"
    store.overwrite(part.key, b"bytez")
    with pytest.raises(Corrupt, match=name):
        read_part(store.blobs, part)
    store.blobs.delete(part.key)
    with pytest.raises(Missing):
        read_part(store.blobs, part)


def test_a_part_that_is_there_is_not_written_again_unless_its_size_is_wrong(
    store: StoreUnderTest,
) -> None:
    part = put_part(store.blobs, b"bytes")
    # The same size: left alone, and found by whoever reads it.
    store.overwrite(part.key, b"bytez")
    assert put_part(store.blobs, b"bytes") == part
    with pytest.raises(Corrupt):
        read_part(store.blobs, part)
    store.overwrite(part.key, b"byte")
    put_part(store.blobs, b"bytes")
    assert read_part(store.blobs, part) == b"bytes"


def test_a_part_that_is_old_enough_to_be_collected_soon_is_written_again(
    store: StoreUnderTest,
) -> None:
    part = put_part(store.blobs, b"bytes")
    store.overwrite(part.key, b"bytez")
    put_part(store.blobs, b"bytes", grace_s=-60.0)  # a clock may be set back
    assert read_part(store.blobs, part) == b"bytes"


def test_a_part_that_does_not_carry_the_name_of_its_content_is_not_believed(
    store: StoreUnderTest,
) -> None:
    part = put_part(store.blobs, b"bytes")
    for wrong in (
        replace(part, digest=digest_of(b"others")),
        replace(part, digest="md5:1"),
        replace(part, key="parts/x"),
    ):
        with pytest.raises(Corrupt):
            read_part(store.blobs, wrong)
    with pytest.raises(Usage, match="only once"):
        put_part(store.blobs, iter([b"x"]))


def test_a_part_is_a_file_that_plain_safetensors_reads(store: StoreUnderTest) -> None:
    tensors = {"weight": np.arange(600, dtype=np.float32).reshape(20, 30), "step": np.array([7])}
    part = put_part(store.blobs, safetensors.numpy.save(tensors))
    found = safetensors.numpy.load(store.another().get(part.key))
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert np.array_equal(found[name], tensor)


def test_a_manifest_is_read_back_from_its_key_and_its_parts_verified(
    store: StoreUnderTest,
) -> None:
    manifest = a_manifest(store)
    key = write_manifest(store.blobs, manifest)
    assert key == manifest_key(manifest)
    assert key.startswith("manifests/a-job/000000000040-")
    reader = store.another()
    assert read_manifest(reader, key) == manifest
    verify(reader, manifest)
    assert [worker for worker, _ in manifest.parts()] == [7, 7, 12, 12]
    assert write_manifest(store.blobs, manifest) == key


def test_a_manifest_is_not_written_while_a_part_is_missing_or_short(
    store: StoreUnderTest,
) -> None:
    manifest = a_manifest(store)
    part = manifest.shares[12][1]
    store.overwrite(part.key, b"short")
    with pytest.raises(Corrupt, match=part.key):
        write_manifest(store.blobs, manifest)
    store.blobs.delete(part.key)
    with pytest.raises(Missing, match=part.key):
        write_manifest(store.blobs, manifest)
    assert list(store.blobs.list("manifests")) == []


def _with(change: Callable[[bytes], bytes], store: StoreUnderTest) -> str:
    """The key of a manifest whose bytes were changed, and whose digest is right for them."""
    data = change(to_bytes(a_manifest(store)))
    key = f"manifests/a-job/000000000040-{digest_of(data).removeprefix('sha256:')}.json"
    store.overwrite(key, data)
    return key


def test_a_manifest_that_is_damaged_newer_or_of_another_checkpoint_is_not_used(
    store: StoreUnderTest,
) -> None:
    key = write_manifest(store.blobs, a_manifest(store))
    store.overwrite(key, to_bytes(a_manifest(store)).replace(b'"step":40', b'"step":41'))
    with pytest.raises(Corrupt, match=key):
        read_manifest(store.blobs, key)
    for error, old, new in (
        (Refused, b'"version":1', b'"version":2'),
        (Refused, b'"view":3', b'"view":3,"viev":3'),
        (Corrupt, b'"step":40', b'"step":41'),
        (Corrupt, b'"step":40', b'"step":true'),
        (Corrupt, b'"step":40', b'"step": 40'),
        (Corrupt, b'"step":40,', b""),
        (Corrupt, b"}", b""),
    ):

        def changed(data: bytes, old: bytes = old, new: bytes = new) -> bytes:
            return data.replace(old, new, 1)

        key = _with(changed, store)
        with pytest.raises(error):
            read_manifest(store.blobs, key)
    with pytest.raises(Usage):
        read_manifest(store.blobs, "parts/x")


def test_a_flipped_part_is_named_when_a_checkpoint_is_verified(store: StoreUnderTest) -> None:
    manifest = a_manifest(store)
    part = manifest.shares[12][0]
    store.overwrite(part.key, b"S" + b"share 12 part 0"[1:])
    with pytest.raises(Corrupt, match=part.key):
        verify(store.blobs, manifest)


def test_a_sweep_removes_what_nobody_needs_and_keeps_the_rest(store: StoreUnderTest) -> None:
    kept = a_manifest(store)
    dropped = replace(kept, step=20, shares={7: (put_part(store.blobs, b"only then"),)})
    keys = [write_manifest(store.blobs, manifest) for manifest in (dropped, kept)]
    flying = put_part(store.blobs, b"reported by an attempt in flight")
    needed = References(frozenset({keys[1]}), frozenset({flying.key}))
    sweeper = Sweeper(store.blobs, lambda: needed, grace_s=-5.0, wait_s=0.0)
    assert sweeper.step() == Swept(marked=2)
    assert store.blobs.exists(MARKS)
    assert sweeper.step().removed == 2
    assert not store.blobs.exists(MARKS)
    left = {found.key for found in store.blobs.list()}
    parts = {part.key for _, part in kept.parts()}
    assert left == {keys[1], flying.key, *parts}
    verify(store.blobs, kept)
    assert sweeper.step() == Swept()


def test_nothing_is_removed_while_a_committed_manifest_cannot_be_read(
    store: StoreUnderTest,
) -> None:
    put_part(store.blobs, b"unneeded")
    key = write_manifest(store.blobs, a_manifest(store))
    before = {found.key for found in store.blobs.list()}
    sweeper = Sweeper(
        store.another(), lambda: References(frozenset({key})), grace_s=-5.0, wait_s=0.0
    )
    assert sweeper.step().marked == 1
    store.overwrite(key, b"{}")
    with pytest.raises(Corrupt):
        Sweeper(
            store.another(), lambda: References(frozenset({key})), grace_s=-5.0, wait_s=0.0
        ).step()
    assert {found.key for found in store.blobs.list("parts")} == {
        name for name in before if name.startswith("parts")
    }


def test_two_names_in_memory_are_two_stores() -> None:
    first, second = open_store("memory:one"), open_store("memory:two")
    first.put("a", b"1")
    assert not second.exists("a")
    assert open_store("memory:one").get("a") == b"1"
