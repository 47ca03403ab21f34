"""The simulator's own parts: what it simulates must behave as the real thing does."""
