"""Models that were trained elsewhere: a file or a folder, here or in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.models import elsewhere
from holdfast.models.publishing import VersionFiles
from holdfast.storage import open_store
from holdfast.wire.errors import Missing, Usage


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What S3 answers is tested with the storage; here a folder takes its place, key by key."""

    def opened(address: str) -> object:
        assert address.startswith("s3://team")
        below = address.removeprefix("s3://team").partition("?")[0].strip("/")
        return open_store(tmp_path / "team" / below)

    monkeypatch.setattr(elsewhere, "open_store", opened)
    store = open_store(tmp_path / "team")
    store.put("models/iris.skops", b"weights")
    store.put("models/bert/config.json", b"{}")
    store.put("models/bert/part/a.bin", b"a")
    return tmp_path


def test_one_object_is_fetched_under_its_name_and_gone_afterwards(bucket: Path) -> None:
    with elsewhere.local_source("s3://team/models/iris.skops?region=eu") as path:
        assert path.name == "iris.skops" and path.read_bytes() == b"weights"
    assert not path.exists()


def test_a_prefix_is_fetched_as_a_folder(bucket: Path) -> None:
    with elsewhere.local_source("s3://team/models/bert/") as path:
        found = {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}
        assert found == {"config.json", "part/a.bin"}


def test_what_is_not_there_is_missing_and_a_whole_bucket_is_refused(bucket: Path) -> None:
    with pytest.raises(Missing), elsewhere.local_source("s3://team/models/none"):
        pass
    with pytest.raises(Usage), elsewhere.local_source("s3://team"):
        pass


def test_a_path_stays_where_it_is(tmp_path: Path) -> None:
    with elsewhere.local_source(tmp_path / "x.onnx") as path:
        assert path == tmp_path / "x.onnx"


def test_two_sources_are_refused_and_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    given = VersionFiles("iris")
    with pytest.raises(Usage):
        elsewhere.check(VersionFiles("iris", source=tmp_path), "s3://team/x.onnx")
    with pytest.raises(Missing):
        elsewhere.check(given, str(tmp_path / "no.onnx"))
    elsewhere.check(given, "s3://team/x.onnx")


def test_outside_of_a_worker_it_says_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_COORDINATION", raising=False)
    with pytest.raises(Usage, match="Client"):
        elsewhere.publish("iris", "x.onnx")
