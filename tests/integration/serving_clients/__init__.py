"""Programs that call a replica with published clients, unchanged.

Each runs in the clients' own environment (`.ci/clients`), imports nothing of ours, is given the
replica's addresses, and prints what it saw as JSON. The tests judge that.
"""
