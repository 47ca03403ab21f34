"""Feature tables: definitions, rows, stores and history."""
