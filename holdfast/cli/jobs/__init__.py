"""The commands about jobs: submit, list, explain, change, read what they wrote and saved."""
