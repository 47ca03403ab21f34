"""Schemas of what is said over gRPC, and the code made from them.

`cluster.proto` (agents and the coordinator) and `inference.proto` (clients and replicas) are
written by hand; the `_pb2.py` and `.pyi` files are made by `sh .ci/proto`.
"""
