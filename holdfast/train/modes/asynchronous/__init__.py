"""The asynchronous mode: parameter servers, and workers that come and go freely.

The loop is the same (`run.batches`, `run.step`), but nobody waits for anybody. A worker takes a
*ticket* (one lane's batch of one step of the data), computes the gradient with the weights that it
has, pushes it, and gets newer weights in the answer.

- *Servers.* The first members of the view also serve: in threads of their own, beside the worker.
  A dedicated server would leave the lanes that its view gives it to nobody, and a small job would
  need a process more. Names (parameters, buffers, the ledger) are placed on a ring, with a bound on
  the bytes of each server: when one comes or goes, few of them move.
- *An update* takes the mean of as many pushes as the job has lanes, from whoever they come. So the
  job has as many updates as the synchronous one, of the same size, and its learning rate and
  schedule mean the same. The script's own optimizer class makes it, a copy for each server.
- *Staleness.* A push from weights that are more than `staleness` updates old is refused, for the
  names that are that old, and the worker has the new weights from the answer. Refused, not weighed
  down: what it would add points away from somewhere else, and the rule is easy to see in a number.
- *The ledger* gives tickets out, to whoever asks: a slow worker takes fewer, and holds nobody up.
  So no worker can be far ahead of another in the data, and none has to wait for the slowest. What a
  dead worker held is given out again.
- *A server that is away.* Workers take plain gradient steps on what it holds, keep the sum of their
  gradients, and push it when the names have a home again. A new home asks all members for what they
  have: the old home's own, a copy that it sent to its neighbour now and then, the weights that
  workers have seen. The newest of each wins.

What is given up: bits. Two runs differ, and a batch may count twice or a push be lost when somebody
dies; both are counted.

    ledger      which batches are done, under way, to come; pure
    messages    a request and its answer between two members
    shard       the names that a server holds, and their updates
    server      answers requests
    traffic     the worker's side: pushes, pulls, what was accumulated
    shard_server   who serves what; what a member holds for others: moves, copies
    tickets     between a worker and the ledger
    shares      checkpoints
    member      all of it, as a run sees it, and its maintenance loop
    loop        the loop
"""
