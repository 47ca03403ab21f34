"""Feature tables: what they cost beside what people use today."""
