"""Which samples a lane gets in a step, and how they are read.

- `order`, `samplers`            samples of a step and lane, as a pure function of the seed
- `sharded`, `streams`           files divided over lanes, and lanes that are read in order
- `source`, `fetching`, `loaders`, `batch`   reading them ahead of the loop
- `digests`, `kinds`             data that is not what it was, or no data set at all
"""
