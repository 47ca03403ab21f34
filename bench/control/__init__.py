"""Benches of what the control plane decides: time for one look at everything."""
