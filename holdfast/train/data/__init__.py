"""Which samples a lane gets in a step, and how they are read.

- `order`     samples of a step and lane, as a pure function of the seed
- `sharded`   files divided over lanes
- `source`, `fetching`, `batch`   reading them ahead of the loop
"""
