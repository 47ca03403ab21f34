"""The broker's parts, each by itself."""
