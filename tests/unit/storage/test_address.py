"""Addresses, keys and retries: pure."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from holdfast import storage
from holdfast.storage import Retrying, open_store
from holdfast.storage.address import FolderAddress, MemoryAddress, S3Address, parse
from holdfast.storage.deadline import TransferDeadline
from holdfast.storage.keys import content_key, digest_of, digest_of_key
from holdfast.wire.errors import Refused, TimedOut, Unavailable, Usage


class HandClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at_s = 1_000.0

    def now_s(self) -> float:
        return self.at_s

    def wall_ms(self) -> int:
        return int(self.at_s * 1_000)


@pytest.mark.parametrize("text", ["file:/data/x", "file:///data/x", "/data/x", Path("/data/x")])
def test_a_folder_is_written_in_any_usual_way(text: str | Path) -> None:
    assert parse(text) == FolderAddress(Path("/data/x"))
    assert open_store(text).address == "file:/data/x"


def test_a_relative_folder_is_where_the_process_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse("store") == parse("file:store") == FolderAddress(tmp_path / "store")


def test_an_address_of_s3_has_a_bucket_a_prefix_and_parameters() -> None:
    assert parse("memory:x") == MemoryAddress("x")
    assert parse("s3://bucket") == S3Address("bucket")
    found = parse("s3://bucket/a/b/?endpoint=http://h:1/&region=eu-1&virtual_hosted=yes&ca=/c.pem")
    assert found == S3Address(
        "bucket", "a/b", "http://h:1", "eu-1", virtual_hosted=True, ca=Path("/c.pem")
    )
    assert str(found) == "s3://bucket/a/b?endpoint=http://h:1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://b?endpiont=http://x", "did you mean 'endpoint'"),
        ("s3://b?region=a&region=b", "twice"),
        ("s3://b?virtual_hosted=maybe", "virtual_hosted=true"),
        ("s3://b?credentials=mine", "environment"),
        ("s3://b?endpoint=host:1", "endpoint=https://"),
        ("s3://", "no bucket"),
        ("s3://b/../x", "key"),
        ("gs://bucket", "write it as"),
        ("ftp:x", "write it as"),
        ("memory:x?size=1", "unknown parameter"),
        ("", "names no place"),
        ("file:", "names no place"),
    ],
)
def test_a_wrong_address_is_told_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(Usage, match=said.replace("?", r"\?")):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKID:hidden@bucket/x",
        "s3://bucket?secret_access_key=hidden",
        "s3://bucket?aws_session_token=hidden",
        "s3://bucket?endpoint=http://me:hidden@host",
        "gs://me:hidden@bucket",
        "unknown:hidden",
    ],
)
def test_an_address_takes_no_secret_and_does_not_repeat_one(text: str) -> None:
    with pytest.raises(Usage) as caught:
        parse(text)
    assert "hidden" not in str(caught.value)


def test_a_content_key_names_its_digest_and_no_other_key_does() -> None:
    digest = digest_of(b"x")
    key = content_key("parts", digest)
    assert digest_of_key(key) == digest
    name = digest.removeprefix("sha256:")
    for other in ("a", "a/b/c/d", f"sha256/{name[:2]}/{name}", f"p/sha256/zz/{name}", key + "0"):
        assert digest_of_key(other) is None


def _failing(times: int, calls: list[float], clock: HandClock) -> str:
    calls.append(clock.at_s)
    if len(calls) <= times:
        raise Unavailable("away", why=f"failure {len(calls)}")
    return "answer"


def _retrying(clock: HandClock, **options: object) -> Retrying:
    def sleep(pause_s: float) -> None:
        clock.at_s += pause_s

    return Retrying(clock=clock, sleep=sleep, **options)  # type: ignore[arg-type]


def test_pauses_double_up_to_a_bound_and_are_the_same_for_the_same_chance() -> None:
    runs = []
    for _ in range(2):
        clock = HandClock()
        calls: list[float] = []
        retrying = _retrying(clock, chance=random.Random(3))
        found = retrying.call("x", lambda _: _failing(7, calls, clock))  # noqa: B023
        assert found == "answer"
        runs.append([later - sooner for sooner, later in itertools.pairwise(calls)])
    assert runs[0] == runs[1]
    for longest_s, pause_s in zip((0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0), runs[0], strict=True):
        assert longest_s / 2 <= pause_s <= longest_s + 1e-9


def test_tries_and_time_are_bounded_and_the_error_tells_the_story() -> None:
    bounds: list[dict[str, Any]] = [{"tries_max": 3}, {"timeout_s": 0.3}]
    for options in bounds:
        clock, tries = HandClock(), 3
        calls: list[float] = []
        retrying = _retrying(clock, chance=random.Random(3), **options)
        with pytest.raises(Unavailable) as caught:
            retrying.call("x", lambda _: _failing(99, calls, clock))  # noqa: B023
        assert len(calls) == tries
        assert caught.value.story == tuple(f"try {n}: failure {n}" for n in range(1, tries + 1))


def test_what_is_refused_is_not_tried_again() -> None:
    calls = []

    def refused(_: TransferDeadline) -> None:
        calls.append(1)
        raise Refused("no")

    with pytest.raises(Refused):
        _retrying(HandClock()).call("x", refused)
    assert calls == [1]


def test_a_call_has_its_time_and_more_for_the_bytes_that_it_has_moved() -> None:
    clock = HandClock()
    deadline = TransferDeadline(clock, 60.0)
    clock.at_s += 59
    deadline.check("x")
    clock.at_s += 2
    with pytest.raises(TimedOut, match="60 s"):
        deadline.check("x")
    deadline.allow_for(10_000_000)
    deadline.check("x")
    clock.at_s += 9
    with pytest.raises(TimedOut, match="70 s"):
        deadline.check("x")


def test_the_public_surface_is_this_and_no_more() -> None:
    assert sorted(storage.__all__) == [
        "Blob",
        "Blobs",
        "Listed",
        "Part",
        "Retrying",
        "open_store",
        "put_part",
        "read_part",
    ]
    public = {name for name in vars(storage.Blobs) if not name.startswith("_")}
    assert public == {
        "address",
        "confirm",
        "delete",
        "delete_unless_newer",
        "exists",
        "get",
        "list",
        "stat",
        "now_s",
        "put",
        "put_if_absent",
        "read_into",
        "stream",
        "tidy",
    }
