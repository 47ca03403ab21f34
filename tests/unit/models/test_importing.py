"""Two bundles with modules of the same names live in one process, and see only their own."""

from __future__ import annotations

import dataclasses
import gc
import json
import pickle
import sys
import threading
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.models.importing import Space
from tests.unit.models.stage import code

Make = Callable[..., Space]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    spaces: list[Space] = []

    def made(files: dict[str, str], *inside: str) -> Space:
        folder = code(tmp_path / f"code{len(spaces)}", files)
        folders = (*(folder / one for one in inside), folder)
        spaces.append(Space(folders, "it@1"))
        return spaces[-1]

    before = list(sys.path)
    yield made
    assert sys.path == before
    for space in spaces:
        space.close()
        assert not [name for name in sys.modules if name.startswith(space.root)]


def test_each_bundle_gets_its_own_module_of_the_same_name(make: Make) -> None:
    net = "import helper\n\ndef value():\n    return helper.VALUE\n"
    one = make({"net.py": net, "helper.py": "VALUE = 1\n"})
    two = make({"net.py": net, "helper.py": "VALUE = 2\n"})
    assert (one.module("net").value(), two.module("net").value()) == (1, 2)
    assert "net" not in sys.modules
    assert "helper" not in sys.modules


@pytest.mark.parametrize(
    "line",
    [
        "import helper; found = helper.VALUE",
        "import helper as other; found = other.VALUE",
        "from helper import VALUE as found",
        "from helper import *; found = VALUE",
        "import pkg.deep; found = pkg.deep.VALUE",
        "import pkg.deep as deep; found = deep.VALUE",
        "from pkg import deep; found = deep.VALUE",
        "from pkg.deep import VALUE as found",
        "import pkg; found = pkg.inner.VALUE",
        "import importlib; found = importlib.import_module('helper').VALUE",
        "from importlib import import_module; found = import_module('pkg.deep').VALUE",
        "import importlib.util; found = __import__('pkg.deep').deep.VALUE",
        "from . import helper; found = helper.VALUE",
        "exec('from helper import VALUE as found')",
        "import space_like.leaf as leaf; found = leaf.VALUE",
    ],
)
def test_every_form_of_import_finds_the_bundles_own(make: Make, line: str) -> None:
    space = make(
        {
            "main.py": f"{line}\n",
            "helper.py": "VALUE = 7\n",
            "pkg/__init__.py": "from . import inner\n",
            "pkg/inner.py": "from helper import VALUE\n",
            "pkg/deep.py": "from ..helper import VALUE\nfrom .inner import VALUE as same\n",
            "space_like/leaf.py": "import helper\nVALUE = helper.VALUE\n",
        }
    )
    assert space.module("main").found == 7


def test_an_import_inside_a_function_of_a_thread_finds_the_bundles_own(make: Make) -> None:
    space = make(
        {
            "net.py": "def late():\n    import helper\n    return helper.VALUE\n",
            "helper.py": "VALUE = 9\n",
        }
    )
    late = space.module("net").late
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(late()))
    thread.start()
    thread.join()
    assert found == [9]


def test_what_the_bundle_does_not_have_is_everybodys(make: Make) -> None:
    space = make({"net.py": "import json, numpy as np\nimport xml.dom\n"})
    module = space.module("net")
    assert module.json is json
    assert module.xml is sys.modules["xml"]


def test_a_bundle_may_have_a_module_named_as_one_of_pythons(make: Make) -> None:
    space = make({"net.py": "import json\nfound = json.MINE\n", "json.py": "MINE = 3\n"})
    assert space.module("net").found == 3
    assert not hasattr(json, "MINE")


def test_a_mere_folder_does_not_hide_an_installed_package(make: Make) -> None:
    space = make({"net.py": "import numpy\nfound = numpy.zeros(2)\n", "numpy/data.txt": "1\n"})
    assert list(space.module("net").found) == [0, 0]


def test_a_checkout_of_holdfast_in_the_bundle_is_not_taken_for_the_one_that_runs(
    make: Make,
) -> None:
    import holdfast

    space = make({"net.py": "import holdfast\n", "holdfast/__init__.py": "OLD = 1\n"})
    assert space.module("net").holdfast is holdfast


def test_a_script_in_a_folder_imports_its_neighbours_first(make: Make) -> None:
    space = make(
        {
            "src/train.py": "import helper, shared\nfound = helper.VALUE, shared.VALUE\n",
            "src/helper.py": "VALUE = 'near'\n",
            "helper.py": "VALUE = 'far'\n",
            "shared.py": "VALUE = 'top'\n",
        },
        "src",
    )
    assert space.module("train").found == ("near", "top")


def test_what_looks_up_a_class_by_its_module_finds_it(make: Make) -> None:
    space = make(
        {
            "net.py": """
                from __future__ import annotations
                from dataclasses import dataclass
                from typing import NamedTuple

                @dataclass
                class Config:
                    width: int = 3
                    inner: Other | None = None

                class Other(NamedTuple):
                    x: int
            """
        }
    )
    net = space.module("net")
    assert dataclasses.asdict(net.Config()) == {"width": 3, "inner": None}
    assert typing.get_type_hints(net.Config)["width"] is int
    assert pickle.loads(pickle.dumps(net.Config(5))) == net.Config(5)


def test_an_error_in_a_module_is_pythons_own_and_leaves_nothing(make: Make) -> None:
    space = make({"net.py": "import broken\n", "broken.py": "1 / 0\n"})
    with pytest.raises(ZeroDivisionError):
        space.module("net")
    assert f"{space.root}.broken" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        space.module("nowhere")


def test_a_closed_space_is_forgotten(make: Make) -> None:
    space = make({"net.py": "class Net:\n    pass\n"})
    module = space.module("net")
    gone = weakref.ref(module.Net)
    space.close()
    del module
    gc.collect()
    assert gone() is None
