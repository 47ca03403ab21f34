"""The execution plane on one machine: an agent runs workers and reports what is durably true.

- `events`      what happens to the machine, what it asks for, what it writes down: values
- `machine`     the state machine: events in, actions out; no I/O, no clock, no chance
- `state`       what the machine holds, and how the journal makes it; `record` of one worker
- `slots`       which cores, devices and ports a worker gets
- `exits`       why a process ended, from what is known of it; pure
- `ports`       what the shell needs of the world, as protocols; the simulator has its own
- `agent`       the shell: takes events, decides, writes the journal, and only then acts
- `journal`     the entries on disk, as JSON: checksummed, fsynced, compacted
- `folders`     the names on disk
- `processes`   who is who in the process table
- `cgroups`     limits for a worker and all its children, where the agent may set them
- `supervisor`  starts, finds again, signals and tidies up after workers
- `uplink`      the stream to the leader: snapshots up, and when; orders down; over gRPC in
                `grpc_transport`
- `presence`    the agent's place in the coordination plane; `plane_session` its session there
- `launching`   a worker's folder, environment and shim, cold or warm; what can be forked
- `shim`        the small parent of each worker, which looks how much memory they hold; outlives
                the agent; imports hardly anything
- `disk_use`    how much disk a worker's folders hold
- `environments` what jobs that name requirements run in; `requirements` what these mean, pure but
                for the files that they name; `as_user` what runs pip
- `zygote`     a process that has imported torch and forks shims with their workers
- `keeper`      the agent's end of it
- `becoming`    what a fork does to be as if `python` had started it
- `channel`     the socket between a worker and its agent
- `assembly`    an agent of the real parts; `main` as a process
- `devices`     what the machine has; `holding` what no other agent of it may give away
- `leftovers`   workers whose agent is gone: are there any, and ending them

It knows nothing of the control plane: orders and reports are values of `holdfast.wire`.
"""
