"""Tests of one part at a time, without a server where none is needed."""
