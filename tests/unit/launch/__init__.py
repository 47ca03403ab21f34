"""A cluster's folder, its records, its locks: without starting a cluster."""
