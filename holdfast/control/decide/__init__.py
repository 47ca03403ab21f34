"""Deciding: desired and observed state as values, and what to do about the difference. Pure."""
