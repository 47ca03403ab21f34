"""`holdfast models`."""
