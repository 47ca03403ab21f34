"""Benches for a machine with a GPU."""
