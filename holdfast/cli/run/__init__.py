"""`holdfast run`: a script on this machine, from its plan to its last line."""
