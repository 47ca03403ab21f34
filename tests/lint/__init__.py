"""Checks of the code that no linter has; `make lint` runs them."""
