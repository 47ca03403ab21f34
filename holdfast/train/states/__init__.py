"""The state of a run: what it is, and its way to disks and to other members.

- `state`, `tracked`, `skeleton`   models and optimizers as named bytes
- `memory`, `mirrors`   the same bytes as tensors, on the CPU and on a GPU
- `sharing`, `saving`, `restoring`   a member's share of a checkpoint, and back
- `handover`, `comparison`, `divergence`   from member to member, and whether all hold the same
"""
