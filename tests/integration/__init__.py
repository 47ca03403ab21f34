"""Tests of the embedded server as a process, with real clients."""
