"""The differential proof: one sequence of operations, two servers, the same answers.

- `steps`     what a client can do, as values
- `generate`  a seeded source of steps that collide with each other
- `answers`   frames decoded and normalised, so that two servers can be compared
- `pair`      carries out a step on both servers in lockstep
- `run`       the loop, the report of a difference, and its shrinking

Compared exactly: the order of everything that a connection receives, every reply's xid, zxid,
error and body, every event, every closed connection. Normalised, and only that:

- session ids and passwords: mapped to the client that opened them;
- characters beyond 16 bits: ZooKeeper sends them as two surrogates, which is no valid UTF-8;
- times: each zxid has one time per server, near the clock of the test;
- the order of children, ephemerals and identities in a list: ZooKeeper gives a hash set's. The
  order of events when a session ends with its ephemerals is compared as it is.

Left out on purpose, because ours is not to repeat what ZooKeeper 3.8.0 does there:

- it closes a connection after an operation that it does not know: the reply is compared, then the
  client drops the connection on both sides;
- it never answers a check outside of a multi that succeeds: only failing ones are sent alone;
- a stranger with a session's id and a wrong password breaks the owner's living connection: wrong
  passwords come only to sessions without one;
- rights are checked against the ones from before a setACL that is still under way: in a burst there
  is no setACL;
- a path that is null runs it into a null pointer, with what it had done so far left standing: ours
  takes it for an empty one, which is also what kazoo means by it; only empty ones are sent;
- checkWatches says "yes" when anybody watches the path: see `pair.same`.
"""
