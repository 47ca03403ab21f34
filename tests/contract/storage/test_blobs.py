"""What every store promises of its blobs."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.storage.keys import content_key, digest_of
from holdfast.storage.objects import BLOB_LIST_PAGE, BLOB_MULTIPART_BYTES
from holdfast.storage.sources import Data
from holdfast.wire.errors import Conflict, Corrupt, Missing, Refused, Usage
from holdfast.wire.limits import BLOB_CHUNK_BYTES, QUIET_PIECE_BYTES
from tests.contract.storage.stores import StoreUnderTest

LARGE = BLOB_MULTIPART_BYTES * 2 + 12_345


def bytes_of(size: int, salt: int = 0) -> bytes:
    """Bytes in which no two blocks are the same."""
    return hashlib.shake_128(f"{size} {salt}".encode()).digest(size)


@pytest.mark.parametrize("size", [0, 1, BLOB_CHUNK_BYTES, BLOB_MULTIPART_BYTES, LARGE])
def test_a_blob_is_read_back_as_it_was_written_whatever_its_size(
    store: StoreUnderTest, size: int
) -> None:
    data = bytes_of(size)
    blob = store.blobs.put("some/blob", data)
    assert (blob.key, blob.size_bytes, blob.digest) == ("some/blob", size, digest_of(data))
    reader = store.another()
    assert reader.get("some/blob", expect_digest=blob.digest) == data
    assert b"".join(reader.stream("some/blob", expect_digest=blob.digest)) == data
    pieces = list(reader.stream("some/blob", piece_bytes=QUIET_PIECE_BYTES))
    assert max(map(len, pieces), default=0) <= QUIET_PIECE_BYTES
    assert b"".join(pieces) == data
    room = bytearray(size + 3)
    assert reader.read_into("some/blob", memoryview(room), expect_digest=blob.digest) == size
    assert bytes(room) == data + bytes(3)
    found = reader.stat("some/blob")
    assert found is not None
    assert found.size_bytes == size


DATA = bytes_of(70_000)
FORMS: dict[str, Callable[[Path], Data]] = {
    "bytes": lambda _: DATA,
    "bytearray": lambda _: bytearray(DATA),
    "view of numbers": lambda _: memoryview(DATA).cast("I"),
    "path": lambda path: path,
    "open file": lambda path: path.open("rb"),
    "file in memory": lambda _: io.BytesIO(DATA),
    "list": lambda _: [DATA[:10], b"", DATA[10:]],
    "generator": lambda _: (DATA[at : at + 7_000] for at in range(0, len(DATA), 7_000)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_blob_is_made_from_bytes_a_file_or_an_iterator(
    store: StoreUnderTest, form: str, tmp_path: Path
) -> None:
    (tmp_path / "source").write_bytes(DATA)
    blob = store.blobs.put("blob", FORMS[form](tmp_path / "source"))
    assert blob.digest == digest_of(DATA)
    assert store.blobs.get("blob") == DATA


def test_what_was_never_written_is_missing(store: StoreUnderTest) -> None:
    store.blobs.put("a/b", b"x")
    for key in ("nothing", "a/c", "a/b/c", "a"):
        with pytest.raises(Missing, match=key):
            store.blobs.get(key)
        assert not store.blobs.exists(key)
        assert store.blobs.stat(key) is None
    with pytest.raises(Missing):
        list(store.blobs.stream("nothing"))


def test_a_later_put_replaces_the_blob_and_delete_removes_it_as_often_as_asked(
    store: StoreUnderTest,
) -> None:
    store.blobs.put("a/b", b"first, and longer")
    store.blobs.put("a/b", b"second")
    assert store.another().get("a/b") == b"second"
    for _ in range(2):
        store.blobs.delete("a/b")
        assert not store.another().exists("a/b")


def test_bytes_that_are_not_those_expected_are_refused_with_the_key_and_both_digests(
    store: StoreUnderTest,
) -> None:
    blob = store.blobs.put("a/b", b"right")
    store.overwrite("a/b", b"wrong")
    for read in (
        lambda: store.blobs.get("a/b", expect_digest=blob.digest),
        lambda: store.blobs.read_into("a/b", memoryview(bytearray(9)), expect_digest=blob.digest),
        lambda: list(store.blobs.stream("a/b", expect_digest=blob.digest)),
    ):
        with pytest.raises(Corrupt) as caught:
            read()
        for word in ("a/b", blob.digest, digest_of(b"wrong")):
            assert word in str(caught.value)


def test_a_key_made_of_a_digest_is_verified_without_being_asked(store: StoreUnderTest) -> None:
    key = content_key("things", digest_of(b"right"))
    with pytest.raises(Conflict):
        store.blobs.put(key, b"wrong")
    assert not store.blobs.exists(key)
    store.blobs.put(key, b"right")
    store.overwrite(key, b"wrong")
    with pytest.raises(Corrupt):
        store.blobs.get(key)


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_source_that_fails_in_the_middle_leaves_the_blob_as_it_was(
    store: StoreUnderTest, size: int
) -> None:
    store.blobs.put("kept", b"old")

    class Oops(Exception):
        pass

    def failing() -> Iterator[bytes]:
        yield bytes_of(size)
        raise Oops

    for key in ("kept", "new"):
        with pytest.raises(Oops):
            store.blobs.put(key, failing())
        with pytest.raises(Conflict, match="changed"):
            store.blobs.put(key, bytes_of(size), expect_digest=digest_of(b"others"))
    assert store.blobs.get("kept") == b"old"
    assert not store.blobs.exists("new")
    assert [found.key for found in store.blobs.list()] == ["kept"]


def test_a_source_that_cannot_be_read_is_not_taken_for_a_fault_of_the_store(
    store: StoreUnderTest, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match="source cannot be read"):
        store.blobs.put("a", tmp_path / "no such file")
    with pytest.raises(Usage):
        store.blobs.put("a", "text")  # type: ignore[arg-type]
    with pytest.raises(Usage, match="text"):
        store.blobs.put("a", io.StringIO("text"))  # type: ignore[arg-type]
    assert not store.blobs.exists("a")


def test_of_many_who_put_if_absent_one_wins_or_the_store_says_that_it_cannot(
    store: StoreUnderTest,
) -> None:
    if not store.keeps_the_first:
        with pytest.raises(Refused, match="only if it is absent"):
            store.blobs.put_if_absent("key", b"x")
        assert list(store.blobs.list()) == []
        return
    gate = threading.Barrier(6)

    def put(number: int) -> bool:
        gate.wait()
        return store.blobs.put_if_absent("key", b"from %d" % number) is not None

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(put, range(6)))
    assert won.count(True) == 1
    assert store.blobs.get("key") == b"from %d" % won.index(True)
    assert store.blobs.put_if_absent("key", b"late") is None


def test_a_listing_has_the_keys_below_whole_segments_in_their_order(store: StoreUnderTest) -> None:
    keys = ["a/b", "a/b.c", "a/b=c/d", "a/c", "a.b", "ab/c", "b/x/y/z", "z"]
    for key in keys:
        store.blobs.put(key, key.encode())
    assert [found.key for found in store.blobs.list()] == sorted(keys)
    below = [found.key for found in store.blobs.list("a")]
    assert below == sorted(key for key in keys if key.startswith("a/"))
    assert below == [found.key for found in store.blobs.list("a/")]
    assert [found.key for found in store.blobs.list("b/x")] == ["b/x/y/z"]
    assert list(store.blobs.list("nothing")) == []
    assert {found.key: found.size_bytes for found in store.blobs.list()} == {
        key: len(key) for key in keys
    }


def test_a_listing_of_more_than_a_page_is_complete(store: StoreUnderTest) -> None:
    keys = [f"many/{number:05d}" for number in range(BLOB_LIST_PAGE + 7)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.blobs.put(key, b"x"), keys))
    assert [found.key for found in store.blobs.list("many")] == keys


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "a/../b", ".", "..", ".a", "a b", "ä", "a\0", "a/" + "b" * 201]
)
def test_a_key_that_some_store_could_not_hold_is_refused_by_all(
    store: StoreUnderTest, key: str
) -> None:
    for action in (store.blobs.get, store.blobs.exists, store.blobs.delete):
        with pytest.raises(Usage, match="key"):
            action(key)
    with pytest.raises(Usage, match="key"):
        store.blobs.put(key, b"x")


def test_a_reader_never_sees_half_of_a_blob_that_is_written_again_and_again(
    store: StoreUnderTest,
) -> None:
    versions = [bytes_of(600_000, salt) for salt in range(3)]
    digests = {digest_of(data) for data in versions}
    store.blobs.put("changing", versions[0])
    stop, seen = threading.Event(), threading.Event()

    def write() -> None:
        for number in range(40):
            if number == 20:
                seen.wait(60.0)
            store.blobs.put("changing", versions[number % 3])
        stop.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        reads = 0
        while not stop.is_set() and not writing.done():
            assert digest_of(store.blobs.get("changing")) in digests
            reads += 1
            seen.set()
        writing.result()
    assert reads


def test_threads_do_not_disturb_each_other(store: StoreUnderTest) -> None:
    def use(number: int) -> None:
        data = bytes_of(50_000, number)
        blob = store.blobs.put(f"t/{number}", data)
        assert store.blobs.get(blob.key, expect_digest=blob.digest) == data
        store.blobs.delete(f"t/{number}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(40)))
    assert list(store.blobs.list("t")) == []


def test_a_guarded_removal_takes_only_what_has_not_been_written_since(
    store: StoreUnderTest,
) -> None:
    store.blobs.put("a", b"1")
    found = store.blobs.stat("a")
    assert found is not None
    assert not store.blobs.delete_unless_newer("a", found.modified_s - 10)
    assert store.blobs.get("a") == b"1"
    assert store.blobs.delete_unless_newer("a", found.modified_s)
    assert not store.blobs.exists("a")
    assert store.blobs.delete_unless_newer("a", 0.0)


def test_nothing_that_is_printed_holds_a_secret(store: StoreUnderTest) -> None:
    shown = [repr(store.blobs), store.blobs.address]
    with pytest.raises(Missing) as caught:
        store.blobs.get("nothing")
    shown.append(str(caught.value))
    for text in shown:
        assert "never-to-be-seen" not in text
        assert "AKID" not in text
