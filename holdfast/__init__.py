"""Holdfast trains PyTorch models on machines that fail, and serves them without dropping a request.

Each package below says in its own docstring what it is and what it may touch; the map of all of
them is `docs/architecture.md`.
"""

__version__ = "0.1.0"
