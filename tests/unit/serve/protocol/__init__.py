"""The Open Inference Protocol: bodies and messages, without a network."""
