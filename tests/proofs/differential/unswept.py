"""The embedded server, started as always, except that it never sweeps containers.

A sweep comes at the server's own time and takes a zxid; ZooKeeper has an option for its interval.
"""

from __future__ import annotations

import sys

from holdfast.coordination.embedded import server

NEVER_S = 24 * 3600.0

if __name__ == "__main__":
    setattr(server, "CONTAINER_SWEEP_S", NEVER_S)  # noqa: B010 - it is Final for everybody else
    from holdfast.coordination.embedded.__main__ import main

    sys.exit(main())
