"""What only a machine with a GPU can try: `make test-gpu`, or `python -m tests.gpu`."""
