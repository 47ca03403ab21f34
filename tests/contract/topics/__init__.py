"""The library of topics over each back end: our broker, a real Kafka, three of them."""
