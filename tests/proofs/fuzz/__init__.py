"""Millions of wrong bytes to a live server, which must not mind.

`python -m tests.proofs.fuzz --megabytes 10 --seed S`

- `frames`   valid requests, their mutations, and requests that are wrong on purpose
- `attacks`  ways to send them: noise, floods, byte by byte, and never reading
- `guard`    what must hold after every batch: the server answers, its state is unharmed, nothing
             leaks, nothing unexpected stands in its output
"""
