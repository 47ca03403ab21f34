"""Benches: what was promised, measured beside what people already run.

`python -m bench` runs them all; `bench/README.md` says how each is measured and what it reached.
"""
