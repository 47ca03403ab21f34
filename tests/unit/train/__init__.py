"""Unit tests of the torch-free half of training."""
