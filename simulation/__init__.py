"""The simulated world: the real decisions, under a network, disks and clocks that a seed decides.

One process, one source of chance, one clock. What decides in it is what decides in production:
the znode tree, `schedule.plan`, `reconcile`, `apply_record`, and the agent with its whole shell.
What is simulated is what surrounds them: processes, messages, disks, time.

- `kernel`       the clock, the queue of events, the trace
- `faults`       what may go wrong, and how often; `named` which of it is switched off
- `strikes`      faults that come at a time of their own, carried out
- `network`      messages: late, lost, doubled, cut off one way or both
- `aio`          an asyncio loop in the world's time, in which a real shell runs
- `disk`         a journal that is torn, lost, damaged, or finds no room
- `plane`        the coordination plane: the real tree behind a simulated connection
- `candidate`    a process that wants to lead: session, line, term
- `coordinator`  a leader's shell: snapshots, decisions, fenced transactions, orders
- `host`         a machine: its folders and its disk; `births` its processes
- `agent`        the process of an agent: the real shell; `agent_session` its session in the plane,
                 `agent_stream` its stream to the leader
- `worker`       a process that follows the view protocol, with a stand-in for `arithmetic`
- `checks`       what must always be true, judged from the world's truth
- `world`        all of it together, from one seed
- `verdict`      what a run came to, and what a kind of world is: for both worlds
- `search`       many seeds; a failing one made small; the hunt for mutants; `runner` many cores
- `mutants`      deliberate breakages (`breakages`), each of which must be found
- `corpus`       seeds that once failed

`python -m simulation --seeds 2000` looks for trouble; `python -m simulation --seed N` replays it.
"""
