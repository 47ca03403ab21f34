"""The contract of online stores of feature tables: one suite for every engine."""
