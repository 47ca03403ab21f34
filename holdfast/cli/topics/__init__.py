"""`holdfast topics`: serve a broker, look at topics and groups, write and read records."""
