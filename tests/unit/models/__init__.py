"""Models: importing, loading, examples, the registry, differences."""
