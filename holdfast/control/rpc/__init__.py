"""The coordinator's side of gRPC: agents, those who join, those who watch."""
