"""A batch of one sample, and a model that cannot train on it."""

from __future__ import annotations

from typing import Final

from holdfast.wire.errors import Usage

# What torch says in `torch.nn.functional._verify_batch_size`.
_TORCH_SAYS: Final = "Expected more than 1 value per channel when training"


def explained(error: BaseException, count: int) -> Usage | None:
    """What to do about a batch norm that got one sample; None: it is another error."""
    if count != 1 or not isinstance(error, ValueError) or _TORCH_SAYS not in str(error):
        return None
    return Usage(
        "a batch of one sample came to a batch norm",
        why="it computes a variance over the batch, and one sample has none; this was all that "
        "was left for the lane in this step",
        fix="leave that step out: run.batches(..., drop_last=True); or give a lane_batch from 2 on",
    )
