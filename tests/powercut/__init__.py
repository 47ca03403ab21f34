"""What is left of a folder when the power goes: the real code on a disk that forgets.

- `disk`     records what is synced while the code runs, and may kill it or fail it at any sync
- `images`   what the disk may hold after a cut: everything that the rules of the system allow
- `test_*`   each part that says "this is durable", cut at every moment, read back with its own code
"""
