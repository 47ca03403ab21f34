"""The pure parts of storage: addresses, keys, retries, manifests, garbage, names of bundles."""
