"""Deciding about versions: rollouts, verdicts, splits, autoscaling, and what is said of them."""
