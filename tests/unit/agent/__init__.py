"""The agent's pure parts and its journal."""
