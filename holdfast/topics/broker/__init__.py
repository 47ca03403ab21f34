"""A single-node broker that speaks Kafka's wire protocol, durable on local disk.

The core decides, the rim does I/O:

- `protocol/`   what travels: `codec` makes readers and writers from tables, `apis` says which
                requests there are in which versions, the other modules are their messages
- `core/`       what decides, without I/O, clock or chance. `state.State.apply(command, now_ms)`
                changes everything that survives a restart: partitions (`partition`), producers,
                transactions (`transactions`), topics and configs, offsets, access lists. `group`
                and `groups` are the consumer groups that live, `sessions` the fetch sessions
- `disk/`       what is durable: the `journal` of all commands, the segments of partitions
                (`segment`, `partition_log`), snapshots and recovery (`store`)
- `pipeline`    the line in which writes wait for the disk: one sync for what gathered
- `connection`, `broker`, `fetching`, `users`, `handlers/`  the asyncio rim

The way of a write
------------------
A request becomes commands. What gathers while the disk is busy is appended to the journal, with
one `fdatasync`; then each command is applied, its batch is written to its partition's segment
(which nobody syncs now: the journal has it), and whoever asked is answered. Nothing is applied,
and so nothing can be read, before it is durable: the high watermark is the end of the log. A
transaction's decision, its markers in every partition and the offsets that go with it are one
command: there is no moment between Prepare and Complete.

A journal for all partitions makes a write cost one sync, however many partitions it touches, and
every write all or nothing; it costs that records are written twice. A checkpoint syncs the
segments that have changed, writes a snapshot of the state, and removes the journal before it.
Recovery cuts the segments back to the snapshot and replays the journal through the same `apply`.

Members of groups live in memory. What must survive (the generation and its assignments, offsets)
goes through the journal before anybody is answered, as Kafka does it.
"""
