"""The coordination plane: facts that everyone must agree on, over kazoo.

`connect(address)` gives a session; the recipes above it speak in domain verbs. Nothing outside
this package makes a raw znode call. It may import `holdfast.wire` only.
"""
