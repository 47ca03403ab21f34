"""The control plane: what it decides, without any I/O."""
