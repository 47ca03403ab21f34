"""Job files: read, checked, described."""
