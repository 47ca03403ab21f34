"""Tests of what everyone shares: messages, certificates, tokens."""
