"""The scripts, alone and on three workers. `make test` runs one for each idea of docs/training.md,
and those that found something; `make test-engines` the others; `make proof-scripts` all of them, on
2, 3 and 5 workers, with kills."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.__main__ import table
from tests.conformance.running import SCRIPTS, Script, alone, complaint, on_workers
from tests.faults.training_stage import Host, hosted


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosted("tests.conformance.host") as found:
        yield found


CHOSEN = [
    "accumulate_with_batchnorm_dropout",
    "augment_with_loader_workers",
    "autocast_bf16",
    "batchnorm_fewer_samples_than_lanes",
    "best_weights_tracked",
    "break_in_body",
    "buffer_running_max_reassigned",
    "checkpointing_with_dropout",
    "clip_by_value_before_update",
    "clip_per_group_then_clip",
    "compiled_model_eager_backend",
    "counter_in_module_attribute",
    "counter_in_global",
    "ema_update_bn_after_loop",
    "ema_with_batchnorm",
    "every_sample_once",
    "extra_update_in_hook",
    "fit_lightning_style",
    "gan_updates_two",
    "grad_scaler_with_clip_and_before_update",
    "gradient_noise_before_update",
    "gradual_unfreezing_hook",
    "hook_leaves_grads",
    "hooks_draw_random_numbers",
    "iterable_dataset_with_start",
    "langevin_optimizer",
    "leftover_backward",
    "leftover_optimizer_step",
    "length_buckets",
    "local_mode_same_bits",
    "lookahead_optimizer",
    "lora_by_hand",
    "moco_queue_and_key_encoder",
    "optimizer_zoo",
    "os_urandom_in_body",
    "parametrizations_all",
    "pretrain_then_finetune",
    "ragged_single_sample_batchnorm1d",
    "random_code_after_loop",
    "refused_dataloader_as_data",
    "refused_ddp",
    "refused_iterable_without_start",
    "refused_lbfgs",
    "refused_optimizer_not_tracked",
    "reinitialise_dead_units",
    "requires_grad_flips_in_body",
    "sam_update_with",
    "sampler_function_curriculum",
    "schedulers_of_all_kinds",
    "sharded_digest_wrong",
    "sharded_read_with_start",
    "stochastic_rounding_bf16",
    "swa_swalr",
    "thaw_between_loops",
    "time_in_hook",
    "torch_weighted_random_sampler",
    "tracked_between_loops",
    "turns_with_accumulate",
    "unused_parameters_in_some_lanes",
    "vqvae_codebook_ema",
]


OTHERS = sorted({path.stem for path in SCRIPTS.glob("*.py")} - set(CHOSEN))


@pytest.mark.parametrize(
    "name", [*CHOSEN, *(pytest.param(name, marks=pytest.mark.engines) for name in OTHERS)]
)
def test_a_script_ends_with_one_digest_or_is_refused_with_a_sentence(
    name: str, host: Host, tmp_path: Path
) -> None:
    script = Script.read(SCRIPTS / f"{name}.py")
    right = alone(script, host, tmp_path / "alone")
    assert not complaint(script, right, right, "alone")
    found = on_workers(script, host, tmp_path / "three", 3)
    assert not complaint(script, right, found, "on three workers")


def test_the_table_in_the_documentation_lists_every_script() -> None:
    page = SCRIPTS.parents[2] / "docs" / "conformance.md"
    assert page.read_text() == table(), "python -m tests.conformance > docs/conformance.md"
