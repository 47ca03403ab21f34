"""Events: from what was decided to what is told."""
