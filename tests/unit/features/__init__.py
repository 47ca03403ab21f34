"""Feature tables: definitions, rows and stores."""
