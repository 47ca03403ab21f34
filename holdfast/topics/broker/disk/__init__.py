"""What makes it durable: the journal, the partitions' segments, snapshots, recovery."""
