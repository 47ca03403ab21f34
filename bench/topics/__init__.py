"""Topics: our broker beside a real Kafka and Redis streams, through the clients that people use.

- `contestants`  the servers, as they come and with a sync before each answer
- `streams`      one way to write and read for all of them
- `measures`     what is measured in rounds, each of all servers in turn
- `scale`        ours alone: many partitions and idle consumers, a large log and its restart
- `report`       rows, goals, and what is shown
- `command`      the command line
"""
