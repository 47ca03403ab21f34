"""`make proof-scripts`: every script of `tests/conformance`, and random ones, on 2, 3 and 5 workers
of which some are killed, against what one process comes to."""
