"""kazoo's own test suite, unmodified, against our server or a real ZooKeeper.

`python -m tests.proofs.kazoo_suite [--real] [-k EXPRESSION]`

- `workshop`  a virtual environment of its own with kazoo and what its tests import
- `java`      what the suite starts as `java`: it reads zoo.cfg and starts our server instead
- `suite`     runs the test files, a few at a time, and collects every test's outcome
- `known`     the tests that are known not to pass, with the reason (`known.toml`)
"""
