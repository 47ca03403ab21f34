"""The control plane: what is wanted, what is seen, and what to do about the difference.

- `spec`       a job as its user writes it
- `facts`      desired and observed state, as values
- `commands`   what may be decided, as values, each with the place where it is carried out
- `schedule`   `plan(...)`: who gets which room; pure
- `reconcile`  `reconcile(desired, observed, now_s, plan)`: what to do next, and why; pure. It
  stands on `sight` (a job as it is seen), `life`, `membership` with `views`, and `checkpoints`;
  `incremental` gives the same at the cost of what has changed
- `records`    what a record does to the desired state; pure
- `codec`, `filing`, `history`  facts as znodes; `plane` the verbs of users, `ledger` the leader's
- `coordinator`  the loop around it: campaign, lead (`leading`), step down
- `agents_port` what it needs of agents; `agents` the same over gRPC, with `door`, `lines`, `stream`
- `main`       a coordinator as a process; `housekeeping` removes blobs that nothing needs
- `invariants` what must always be true of all that

Deciding is pure: no I/O, no clock, no chance. The coordinator around it reads one snapshot, asks,
and carries out; the simulator does the same in a simulated world.
"""
