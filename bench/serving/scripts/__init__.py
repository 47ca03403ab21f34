"""What the contestants run: the same models, each served in its own way."""
