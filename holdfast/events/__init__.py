"""What the system tells on topics: decisions, transitions, models, metrics, workers' output.

- `records`   what an event is, and its kinds; pure
- `outbox`    from the histories of the coordination plane to events, in order, none twice; pure
- `telling`   the reader of the outbox, one in a cluster, and the record of how far it has told

The histories are the outbox: whoever decides writes them anyway, in the transaction of what it
decided, and knows nothing of topics. What was decided while topics were away is told when they are
back; what was trimmed by then is told as a gap.
"""
