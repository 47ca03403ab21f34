"""`holdfast serve`, `services`, `predict` and what belongs to them."""
