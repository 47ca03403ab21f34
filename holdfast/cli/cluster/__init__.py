"""The commands about machines: up, down, status, join, standby, nodes."""
