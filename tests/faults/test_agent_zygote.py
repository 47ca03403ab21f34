"""Workers that the zygote forks: for all that anybody can see, `python` has started them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import zygote_probe
from tests.faults.agent_process import AgentProcess
from tests.waiting import eventually

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.arange(512.0).reshape(64, 8) / 512)
    for method in ("fork", "spawn"):
        for (x,) in DataLoader(data, 16, num_workers=2, multiprocessing_context=method):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    print([float(one.sum()) for one in model.parameters()])
"""
PROBE = zygote_probe.__file__
numbers = itertools.count(1)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path_factory.mktemp("zygote") / "agent", warm=True) as warm:
        warm.start()
        yield warm


class Outcome:
    """One worker's end and its output, and who had started it."""

    def __init__(self, agent: AgentProcess, *command: str, **environment: str) -> None:
        self.worker = str(next(numbers))
        agent.ask("start", worker=int(self.worker), command=command, environment=environment)
        end = agent.until(lambda now: now[self.worker]["phase"] == "gone")[self.worker]
        self.exit, self.detail = end["exit"], end["detail"]
        logs = agent.folder / "logs" / f"job.{self.worker}"
        self.out, self.err = ((logs / f"{name}.log").read_text() for name in ("out", "err"))


def both(agent: AgentProcess, *command: str) -> tuple[Outcome, Outcome]:
    """The same command, cold and warm."""
    return Outcome(agent, *command, HOLDFAST_WARM="0"), Outcome(agent, *command)


def is_warm(agent: AgentProcess, *command: str, **environment: str) -> bool:
    """Whether it is forked: it then has the zygote's modules from the beginning."""
    said = Outcome(agent, *command, **environment)
    assert said.exit == "done", said.detail
    return said.out.strip() == "True"


@pytest.fixture
def loaded(tmp_path: Path) -> Path:
    script = tmp_path / "loaded.py"
    script.write_text("import sys\nprint('torch' in sys.modules)\n")
    return script


@pytest.mark.parametrize("how", [("python", PROBE), ("python", "-m", "tests.faults.zygote_probe")])
def test_a_forked_program_sees_what_an_executed_one_sees(
    agent: AgentProcess, how: tuple[str, ...]
) -> None:
    cold, warm = both(agent, *how, "self", "--option", "with space")
    assert (cold.exit, warm.exit) == ("done", "done"), (cold.err, warm.err)
    found = json.loads(warm.out.replace(f"/job.{warm.worker}/", "/job.N/"))
    wanted = json.loads(cold.out.replace(f"/job.{cold.worker}/", "/job.N/"))
    for what, value in wanted.items():
        assert found[what] == value, what


@pytest.mark.parametrize("end", sorted(zygote_probe.ENDS))
def test_a_forked_program_ends_as_an_executed_one_ends(agent: AgentProcess, end: str) -> None:
    cold, warm = both(agent, "python", PROBE, end)
    assert (warm.exit, warm.out, warm.err) == (cold.exit, cold.out, cold.err)
    assert warm.detail == cold.detail


def test_a_traceback_shows_the_users_own_lines_alone(agent: AgentProcess, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("def go():\n    raise RuntimeError('mine')\n\n\ngo()\n")
    told = Outcome(agent, "python", str(script))
    assert told.exit == "error"
    lines = told.detail.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if "File" in line] == [
        f'  File "{script}", line 5, in <module>',
        f'  File "{script}", line 2, in go',
    ]


@pytest.mark.parametrize("text", ["def (:\n", "import no_such_module\n", "\0\n", "x = '\xe9'\n"])
def test_a_script_that_cannot_run_says_the_same(
    agent: AgentProcess, tmp_path: Path, text: str
) -> None:
    script = tmp_path / "broken.py"
    script.write_bytes(text.encode("latin-1"))
    cold, warm = both(agent, "python", str(script))
    assert (warm.exit, warm.err) == (cold.exit, cold.err)


def test_a_module_that_is_not_there_says_the_same(agent: AgentProcess) -> None:
    cold, warm = both(agent, "python", "-m", "no.such.module")
    assert (warm.exit, warm.err) == (cold.exit, cold.err)


def test_a_line_in_the_log_of_a_worker_costs_an_import(
    agent: AgentProcess, loaded: Path, tmp_path: Path
) -> None:
    """The others wait for whoever joins them."""
    eventually(lambda: is_warm(agent, "python", str(loaded)), "the zygote is ready")
    script = tmp_path / "logs_once.py"
    script.write_text(
        "import sys\n"
        "from holdfast.system import logs\n"
        "before = set(sys.modules)\n"
        "logs.set_up()\n"
        "logs.get('train').info('joined', step=1)\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    told = Outcome(agent, "python", str(script))
    assert (told.out.strip(), "joined" in told.err) == ("[]", True)


def test_a_script_is_forked_with_torch_imported_and_other_commands_are_executed(
    agent: AgentProcess, loaded: Path
) -> None:
    assert is_warm(agent, "python", str(loaded))
    assert is_warm(agent, "python", "-u", str(loaded))
    line = loaded.read_text()
    for command in (["python", "-c", line], ["python", "-B", str(loaded)], ["python3.11", PROBE]):
        given = [*command, "nothing"] if PROBE in command else command
        assert Outcome(agent, *given).out.strip() in ("False", "")
    assert not is_warm(agent, "env", "python", str(loaded))


@pytest.mark.parametrize(
    "environment",
    [
        {"HOLDFAST_WARM": "0"},
        {"PYTHONHASHSEED": "1"},
        {"OMP_SCHEDULE": "static"},
        {"LD_BIND_NOW": "1"},
        {"TORCH_LOGS": ""},
        {"OPENBLAS_NUM_THREADS": "1"},
    ],
    ids=lambda environment: next(iter(environment)),
)
def test_what_is_read_when_a_program_is_loaded_is_left_to_an_executed_one(
    agent: AgentProcess, loaded: Path, environment: dict[str, str]
) -> None:
    assert not is_warm(agent, "python", str(loaded), **environment)


def test_a_folder_with_a_module_of_the_same_name_is_left_to_an_executed_one(
    agent: AgentProcess, loaded: Path
) -> None:
    (loaded.parent / "sympy.py").write_text("mine = True\n")
    assert not is_warm(agent, "python", str(loaded))
    (loaded.parent / "sympy.py").rename(loaded.parent / "not_loaded.py")
    assert is_warm(agent, "python", str(loaded))


def test_each_has_random_numbers_of_its_own(agent: AgentProcess) -> None:
    said = [json.loads(Outcome(agent, "python", PROBE, "chance").out) for _ in range(3)]
    for values in zip(*said, strict=True):
        assert len(set(values)) == 3, values
    assert said[0][1] is not None, "torch was there"


def test_as_many_threads_as_the_environment_says(agent: AgentProcess, tmp_path: Path) -> None:
    script = tmp_path / "threads.py"
    script.write_text(
        "import ctypes, json, numpy, pathlib, torch\n"
        # numpy brings one OpenBLAS; torch brings another where it has no MKL, as on arm64. Each
        # spells the same question in its own way.
        "names = [first + 'openblas_get_num_threads' + last\n"
        "         for first in ('scipy_', '') for last in ('64_', '')]\n"
        "paths = {line.split()[-1] for line in open('/proc/self/maps') if 'openblas' in line}\n"
        "said = {'torch': torch.get_num_threads()}\n"
        "for path in sorted(paths):\n"
        "    library = ctypes.CDLL(path)\n"
        "    known = [name for name in names if hasattr(library, name)]\n"
        "    assert known, path + ' does not say how many threads it has'\n"
        "    said[pathlib.Path(path).name] = getattr(library, known[0])()\n"
        "print(json.dumps(said))\n"
    )
    for count in (1, 2):
        cold = Outcome(agent, "python", str(script), HOLDFAST_WARM="0", OMP_NUM_THREADS=str(count))
        warm = Outcome(agent, "python", str(script), OMP_NUM_THREADS=str(count))
        assert warm.out == cold.out
        said = json.loads(warm.out)
        assert len(said) > 1, "numpy's library is there"
        assert set(said.values()) == {count}, said


def test_a_forked_worker_trains_and_its_data_loaders_fork_in_turn(
    agent: AgentProcess, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    cold, warm = both(agent, "python", str(script))
    assert (cold.exit, warm.exit) == ("done", "done"), (cold.detail, warm.detail)
    assert warm.out == cold.out


def test_memory_limit_ends_a_forked_worker_for_memory(tmp_path: Path, agent: AgentProcess) -> None:
    script = tmp_path / "greedy.py"
    script.write_text("held = bytearray(1 << 44)\n")
    assert Outcome(agent, "python", str(script)).exit == "memory"
