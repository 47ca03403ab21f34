"""The script that is trained, in a folder of its own: beside a `__main__` no zygote forks it."""
