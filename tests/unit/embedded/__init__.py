"""Tests of the embedded coordination server, part by part, without a socket."""
