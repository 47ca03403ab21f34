"""The execution plane on one machine: an agent runs workers and reports what is durably true.

- `events`      what happens to the machine, what it asks for, what it writes down: values
- `machine`     the state machine: events in, actions out; no I/O, no clock, no chance
- `state`       what the machine holds, and how the journal makes it; `record` of one worker
- `slots`       which cores, devices and ports a worker gets
- `exits`       why a process ended, from what is known of it; pure
- `entries`     journal entries and JSON, in both directions
- `journal`     the entries on disk: checksummed, fsynced, compacted
- `folders`     the names on disk
- `processes`   who is who in the process table
- `cgroups`     limits for a worker and all its children, where the agent may set them
- `supervisor`  starts, finds again, signals and buries workers
- `launching`   a worker's folder, environment and shim, cold or warm
- `shim`        the small parent of each worker; outlives the agent; imports nothing of ours but
- `footprint`   how much memory a worker and its children hold
- `disk_use`    how much disk a worker's folders hold
- `environments` what jobs that name requirements run in; `requirements` what these mean, pure but
                for the files that they name; `as_user` what runs pip
- `nursery`     a process that has imported torch and forks shims with their workers
- `keeper`      the agent's end of it; `programs` which commands it can run
- `becoming`    what a fork does to be as if `python` had started it
- `channel`     the socket between a worker and its agent
- `agent`       ties these together behind `deliver` and `snapshot`
- `main`        an agent as a process; `presence` its place in the coordination plane
- `devices`     what the machine has; `holding` what no other agent of it may give away
- `leftovers`   workers whose agent is gone: are there any, and ending them

It knows nothing of the control plane: orders and reports are values of `holdfast.wire`.
"""
