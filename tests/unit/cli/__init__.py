"""Tests of the command line, run as its users run it."""
