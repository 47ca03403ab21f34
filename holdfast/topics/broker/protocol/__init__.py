"""What travels: Kafka's encoding, its messages as tables, its error numbers. Pure."""
