"""Models: versions that never change, and aliases that move.

- `records`  a version, its signature, an alias: values without I/O
"""
