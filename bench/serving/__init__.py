"""Serving beside its peers: throughput, p99 at a steady rate, and p99 while versions load."""
