"""What people see on a terminal: commands run in one, and their screens kept as golden pictures."""
