"""A whole cluster on hosts of its own, killed, cut, paused, slowed and filled while it is used.

`python -m tests.proofs.chaos --minutes 30 --seed 7 [--ensemble] [--store folder] [--plan]`

Hosts are network namespaces with addresses of their own: coordination servers, two coordinators and
controllers, three machines with agents, two gateways with an Envoy each, a store, and clients. Some
have a small disk of their own. A training goes on, a
model is served under load, versions come and go, and a client writes through the coordination
plane; meanwhile a script of faults is played, drawn from a seed.

- `observed`    conditions on what is seen: `job.step > 40`. Pure
- `script`      the injector: `chaos.kill(agent=2).when(job.step > 40)`. Pure
- `drawing`     a script from a seed; `plan`: a seed, a time, a cast. Pure
- `cast`        who plays, on which host
- `network`     hosts in namespaces, links that are cut and slowed; `loopback`: without root
- `disks`       small disks for hosts, that can be filled
- `processes`        the processes on their hosts, kept running as init would
- `hand`        does what the script says, and takes it back
- `clients`     who uses the cluster, from outside
- `onlooker`    looks at the service; `rounds` trains; `rolls` rolls out and back
- `histories`   what was written down; `judging` what must be true of it. Pure
- `observers`   all who look on, and all checks together
- `campaign`    the run; `telling` what people see of it
"""
