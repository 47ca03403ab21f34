"""A folder of another user is not used: what it says is wanted would run with our rights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.cluster import folder as clusters
from holdfast.wire.errors import Refused


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_another_user_has_made_is_neither_used_nor_made_a_cluster(
    tmp_path: Path,
) -> None:
    place = tmp_path / "planted"
    place.mkdir()
    os.chown(place, 65534, 65534)
    with pytest.raises(Refused, match="belongs to another user"):
        clusters.create(place, name="planted")
    os.chown(place, 0, 0)
    clusters.create(place, name="planted")
    os.chown(place, 65534, 65534)
    with pytest.raises(Refused, match="belongs to another user"):
        clusters.opened(place)
