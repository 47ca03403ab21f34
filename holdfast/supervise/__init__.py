"""Keeping the processes of a cluster alive on one machine.

    wanted.json     which processes are wanted here, and how each is started
    run/down        nothing is wanted here: `holdfast down` was said

- `records`     who runs over a folder: `run/KIND-NAME.json`, locks, handles of exactly one process
- `wanted`      what is wanted
- `decide`      when a process that died is started again, and when not: pure
- `spawn`       starting one
- `supervisor`  the process that does it: `python -m holdfast.supervise --cluster DIR`
- `watch`       in every process that is kept: starts the supervisor again when that dies

The supervisor is small, so this package imports nothing but the standard library and light parts of
`wire`; every process that is kept can import it, since it stands below all of them.
"""
