"""The state of a run: what it is, and its way to disks and to other members.

- `state`, `tracked`, `skeleton`   models and optimizers as named bytes
- `memory`   the same bytes as tensors
- `checkpoints`   a member's share of a checkpoint: cut, written, and read back
- `handover`, `divergence`   from member to member, and whether all hold the same
"""
