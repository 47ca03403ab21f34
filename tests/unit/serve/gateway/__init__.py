"""The gateway's decisions: pure, so without an Envoy."""
