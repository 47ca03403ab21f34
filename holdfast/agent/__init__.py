"""The execution plane on one machine: an agent runs workers and reports what is durably true.

- `events`      what happens to the machine, what it asks for, what it writes down: values
- `machine`     the state machine: events in, actions out; no I/O, no clock, no chance
- `record`      what the machine holds of one worker; `slots` which cores, devices and ports it gets
- `exits`       why a process ended, from what is known of it; pure
- `entries`     journal entries and JSON, in both directions
- `journal`     the entries on disk: checksummed, fsynced, compacted
- `folders`     the names on disk
- `processes`   who is who in the process table
- `cgroups`     limits for a worker and all its children, where the agent may set them
- `supervisor`  starts, finds again, signals and buries workers
- `shim`        the small parent of each worker; outlives the agent; imports nothing of ours
- `channel`     the socket between a worker and its agent
- `agent`       ties these together behind `deliver` and `snapshot`

It knows nothing of the control plane: orders and reports are values of `holdfast.wire`.
"""
