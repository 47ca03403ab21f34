"""What torch says of a GPU's error, and what people are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.train import gpu_faults
from holdfast.train.gpu_faults import GpuMemoryFull, GpuMisused, explained
from holdfast.wire.causes import cause_of, is_gpu_fault
from holdfast.wire.errors import GpuFault, HoldfastError

ECC = """CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below
might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""


class OutOfMemoryError(RuntimeError):
    """As torch calls its own."""


class AcceleratorError(RuntimeError):
    """As torch calls its own."""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (AcceleratorError(ECC), GpuFault, "uncorrectable error (ECC)"),
        (RuntimeError(ECC), GpuFault, "uncorrectable error (ECC)"),
        (RuntimeError("CUDA error: unknown error"), GpuFault, "does not say of what"),
        (
            RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            GpuFault,
            "does not answer",
        ),
        (
            OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            GpuMemoryFull,
            "out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.",
        ),
        (
            AcceleratorError("CUDA error: an illegal memory access was encountered"),
            GpuMisused,
            "illegal memory access",
        ),
        (AcceleratorError("CUDA error: device-side assert triggered"), GpuMisused, "index"),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_NOT_SUPPORTED"), GpuMisused, "NOT_SUPPORTED"),
    ],
)
def test_each_error_of_a_gpu_is_told_with_its_cause(
    error: Exception, kind: type[HoldfastError], text: str
) -> None:
    found = explained(error, "GPU 3")
    assert type(found) is kind
    assert found is not None and "GPU 3" in found.what and text in found.what


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("mat1 and mat2 cannot be multiplied"), KeyError("CUDA")]
)
def test_an_error_of_the_script_stays_its_own(error: Exception) -> None:
    assert explained(error, "GPU 0") is None


def test_what_the_driver_has_written_of_the_process_is_in_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_text(
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=41, name=python, GPU has fallen off the bus.\n"
        "6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='7', name=other, DBE\n"
    )
    lines = "".join(gpu_faults.kernel_lines(str(log))).splitlines()
    assert gpu_faults.xids_of(41, lines) == ["Xid 79: name=python, GPU has fallen off the bus."]
    found = explained(RuntimeError(ECC), "GPU 0", gpu_faults.xids_of(41, lines))
    assert found is not None and "Xid 79" in found.why
    assert gpu_faults.kernel_lines(str(tmp_path / "none")) == []


def test_the_worker_ends_with_words_from_which_its_agent_knows_the_fault() -> None:
    fault = explained(RuntimeError(ECC), "GPU 0")
    told = (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        f"holdfast.wire.errors.GpuFault: {fault}\nit ended with status 1"
    )
    assert is_gpu_fault(told)
    assert cause_of(told).text.startswith("GPU 0 has failed: its memory")
    assert not is_gpu_fault(told.replace("GpuFault", "Unavailable"))
