"""The control plane: what is wanted, what is seen, and what to do about the difference.

- `jobfile`  a job as its user writes it
- `decide`   pure: desired and observed state as values (`facts`, `spec`), what may be decided
  (`commands`), who gets which capacity (`schedule`), what to do next and why (`reconcile`, on
  `observed`, `lifecycle`, `membership` with `views`, and `checkpoints`; `incremental` gives the
  same at the cost of what has changed), what a record does (`records`), what must always be true
  (`invariants`)
- `store`    facts as znodes (`codec`, `layout`, `history`); the verbs of users (`plane`), the
  leader's (`ledger`)
- `rpc`      what a coordinator needs of agents (`port`), and the same over gRPC (`agents`,
  with `join_endpoint`, `connections`, `stream`)
- `shell`    the loop around it: campaign, lead (`leading`), step down; a coordinator as a process

Deciding is pure: no I/O, no clock, no chance. The coordinator around it reads one snapshot, asks,
and carries out; the simulator does the same in a simulated world.
"""
