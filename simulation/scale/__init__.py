"""What breaks first when a cluster grows: a model made of measured costs.

- `costs`: every figure that the model stands on, with the command that measured it
- `sizes`: how large records get, by the code that writes them
- `training`, `serving`: how busy each part is at a size, and where it breaks
- `queues`: seeded simulations of what waits: reports at the leader, requests at replicas
- `pictures`: lines as SVG

`python -m simulation.scale` prints the tables; `--plots docs/pictures` makes the pictures of
`docs/scale.md`. Pure, but for `__main__`: the same costs and the same seed give the same figures.
"""
