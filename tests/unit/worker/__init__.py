"""Unit tests of what a process says to its agent."""
