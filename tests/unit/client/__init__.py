"""The Python client, without a cluster."""
