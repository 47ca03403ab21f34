"""Serving, without processes."""
