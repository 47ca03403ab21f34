"""What is wanted and what happened, as znodes and blobs: what users do, and what leaders do."""
