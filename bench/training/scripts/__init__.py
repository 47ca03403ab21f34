"""What the contestants run: the same model on the same samples, each in its own way."""
