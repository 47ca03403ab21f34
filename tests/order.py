"""In which order tests are begun, which of them one process runs, and which are large.

Not with `xdist_group` marks: pytest 9.2 and pytest-xdist 3.8 together pass over them in silence.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

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
_TOPICS: Final = ("admin", "groups", "lost_answers", "records", "transactions")
# Tests of one file share something that takes long to start; those of the same name would be too
# much for a small machine at the same time.
TOGETHER: Final = {
    **{
        name: name
        for name in (
            "tests/faults/test_agent_zygote.py",
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
            "tests/integration/test_gateway_access.py",
            "tests/integration/test_serve_command.py",
            "tests/integration/test_serving_clients.py",
            "tests/integration/test_serving_clients_schema.py",
            "tests/integration/test_strangers_between_machines.py",
            "tests/integration/test_training_demo.py",
            "tests/test_bad_input.py",
            "tests/unit/test_style.py",
        )
    },
    **dict.fromkeys(
        (f"tests/contract/topics/test_{name}.py" for name in _TOPICS), "back ends of topics"
    ),
    "tests/faults/test_preemption.py": _CONTROL,
    "tests/faults/test_two_leaders.py": _CONTROL,
    "tests/test_control_chaos.py": _CONTROL,
}


# What takes long and says little more than what stays beside it: `make test-engines` runs it, as if
# it were marked `engines`. How the names of such tests of a file begin, after `test_`.
LARGE: Final = {
    # Demos and tools of others, and the same with less around it in other tests.
    "tests/integration/test_training_demo.py": ("",),
    "tests/integration/test_serving_clients_schema.py": ("",),
    # Whole clusters of their own for one case of what `holdfast run` and `holdfast serve` do.
    "tests/integration/test_run.py": (
        "a_job_that_has_succeeded_starts_anew",
        "a_command_that_is_killed_leaves_no_process",
        "data_that_is_not_what_it_was",
        "a_job_goes_on_with_the_code_that_it_began_with",
        "a_run_shows_no_line_of_the_one_before_it",
        "two_runs_over_one_folder_are_refused",
        "on_a_terminal_a_panel_is_drawn",
    ),
    "tests/integration/test_sharing.py": ("scripts_share_a_lock_and_a_value",),
    "tests/faults/test_replica_faults.py": ("versions_come_and_go_under_load",),
    "tests/integration/test_serve_command.py": ("services_come_back_with_the_cluster",),
    "tests/integration/test_models.py": ("a_job_publishes_one_version_although",),
    "tests/integration/test_unserve.py": ("the_last_unserve_ends_gateway_and",),
    "tests/integration/test_dead_replicas.py": ("",),
    "tests/integration/test_job_requirements.py": ("",),
    "tests/integration/test_gateway.py": ("no_user_leaves_the_canary_while_it_grows",),
    # Kills in many orders and by chance: one seed, or the orders that begin with the agent, stay.
    "tests/faults/test_agent_kills.py": (
        "each_order_is_carried_out_once_however_often_the_agent_is_killed[2-",
        "each_order_is_carried_out_once_however_often_the_agent_is_killed[1-cold]",
    ),
    "tests/faults/test_agent_warm_kills.py": (
        "killed_in_any_order_nothing_is_lost_and_nothing_stays[zygote-",
        "killed_in_any_order_nothing_is_lost_and_nothing_stays[shim-",
        "killed_in_any_order_nothing_is_lost_and_nothing_stays[worker-",
    ),
    "tests/faults/test_members_together.py": (
        "random_kills_joins_and_full_crashes_come_to_the_right_answer[1]",
        "random_kills_joins_and_full_crashes_come_to_the_right_answer[2]",
    ),
    "tests/faults/test_sharing.py": (
        "a_semaphore_has_never_more_holders_than_it_counts_while_workers_and_agents_are_killed[4]",
    ),
    "tests/faults/test_members.py": ("a_member_killed_in_the_middle_of_a_hand_over[source]",),
    "tests/faults/test_training_deaths.py": (
        "random_schedules_of_deaths",
        "a_worker_joins_in_the_middle_and_another_leaves",
        "a_worker_killed_in_the_middle_of_a_step_costs_only_its_own_lanes[convnet]",
    ),
    # Proofs whose decisions the simulated services show, or that the embedded plane shows, too.
    "tests/test_bad_versions.py": ("",),
    "tests/contract/test_control_plane_failover.py": (
        "leaders_that_die_between_any_two_writes_leave_a_job_that_ends_well[zookeeper]",
    ),
    # A thousand objects in a pretended S3; a real server of it keeps them in `make test`.
    "tests/contract/storage/test_blobs.py": ("a_listing_of_more_than_a_page_is_complete[moto]",),
    # The largest of several models, modes or ways to end.
    "tests/faults/test_training.py": (
        "a_model_ends_with_the_same_bits_on_one_two_three_four_and_eight_workers[convnet]",
        "a_model_ends_with_the_same_bits_on_one_two_three_four_and_eight_workers[transformer]",
    ),
    "tests/faults/test_async.py": (
        "a_killed_server_and_half_of_the_workers_killed",
        "a_worker_ten_times_slower_holds_nobody_up",
        "when_all_die_the_job_goes_on_from_what_its_servers_wrote",
    ),
    "tests/faults/test_agent_zygote.py": (
        "a_forked_worker_trains_and_its_data_loaders",
        "as_many_threads_as_the_environment_says",
    ),
}


def is_large(nodeid: str) -> bool:
    file, _, test = nodeid.partition("::")
    return test.removeprefix("test_").startswith(LARGE.get(file, ()))


def place_of(nodeid: str) -> int:
    """Where a test comes in the order; those that are not slow stay in theirs."""
    file = nodeid.partition("::")[0]
    return SLOW.index(file) if file in SLOW else len(SLOW)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives what stays together to one process; everything else to whoever has nothing to do.

    Every second process begins at the end of the order. There are the unit tests, which take a
    core; at its beginning are the slow ones, which mostly wait for other processes. So at any time
    some of both run, and the cores are busy until the two ends meet.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """What a process has finished is forgotten: after each test all that it was given is
        counted."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        given = self.assigned_work[node]
        if all(given[scope].values()):
            del given[scope]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.nodes.index(node) % 2:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER.get(nodeid.partition("::")[0], nodeid)
