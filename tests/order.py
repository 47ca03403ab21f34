"""In which order tests are begun, and which of them one process runs.

Not with `xdist_group` marks: pytest 9.2 and pytest-xdist 3.8 together pass over them in silence.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# What takes longest, the longest first: begun last, it would be waited for by idle processes.
SLOW: Final = (
    "tests/conformance/test_scripts.py",
    "tests/integration/test_commands.py",
    "tests/integration/test_training_demo.py",
    "tests/test_control_chaos.py",
    "tests/faults/test_local.py",
    "tests/faults/test_async.py",
    "tests/test_training_proof.py",
    "tests/test_chaos.py",
    "tests/faults/test_training_deaths.py",
    "tests/integration/test_serve_command.py",
    "tests/integration/test_standby.py",
    "tests/integration/test_unserve.py",
    "tests/test_serving_proof.py",
    "tests/test_kazoo_suite.py",
    "tests/faults/test_training.py",
    "tests/faults/test_compression.py",
    "tests/faults/test_agent_warm_kills.py",
    "tests/faults/test_agent_kills.py",
    "tests/contract/test_control_plane_failover.py",
)
_CONTROL: Final = "proofs of the control plane"
# Tests of one file share something that takes long to start; those of the same name would be too
# much for a small machine at the same time.
TOGETHER: Final = {
    **{
        name: name
        for name in (
            "tests/faults/test_agent_nursery.py",
            "tests/faults/test_agent_warm_kills.py",
            "tests/faults/test_async.py",
            "tests/faults/test_compression.py",
            "tests/faults/test_local.py",
            "tests/faults/test_training.py",
            "tests/faults/test_training_data.py",
            "tests/faults/test_training_deaths.py",
            "tests/faults/test_training_edges.py",
            "tests/faults/test_training_scripts.py",
            "tests/integration/test_client.py",
            "tests/integration/test_commands.py",
            "tests/integration/test_completion.py",
            "tests/integration/test_gateway.py",
            "tests/integration/test_gateway_changes.py",
            "tests/integration/test_gateway_doors.py",
            "tests/integration/test_serve_command.py",
            "tests/integration/test_serving_clients.py",
            "tests/integration/test_serving_clients_schema.py",
            "tests/integration/test_strangers_between_machines.py",
            "tests/integration/test_training_demo.py",
            "tests/test_bad_input.py",
            "tests/unit/test_style.py",
        )
    },
    "tests/faults/test_preemption.py": _CONTROL,
    "tests/faults/test_two_leaders.py": _CONTROL,
    "tests/test_control_chaos.py": _CONTROL,
}


def place_of(nodeid: str) -> int:
    """Where a test comes in the order; those that are not slow stay in theirs."""
    file = nodeid.partition("::")[0]
    return SLOW.index(file) if file in SLOW else len(SLOW)


class Scheduling(LoadScopeScheduling):
    """Gives what stays together to one process; everything else to whoever has nothing to do."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.partition("::")[0], nodeid)
