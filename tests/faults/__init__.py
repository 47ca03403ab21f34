"""Real faults: kills, full disks, torn files."""
