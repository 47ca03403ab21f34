"""The tests. `tests/servers` starts real servers; `make test` runs everything."""
