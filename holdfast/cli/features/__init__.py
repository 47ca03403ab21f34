"""`holdfast features`: tables declared, looked at, read and written.

- `opening`   from a command's words to the tables of a cluster
- `commands`  definitions: apply, list, describe, remove
- `rows`      get, put, delete
"""
