"""The schema of what agents and the coordinator say to each other, and the code made from it.

`cluster.proto` is written by hand; `cluster_pb2.py` and `.pyi` are made by `sh .ci/proto`.
"""
