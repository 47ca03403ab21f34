"""The cache of answers, without a Redis."""
