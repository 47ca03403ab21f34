"""The supervisor and what it keeps: real processes, without a cluster."""
