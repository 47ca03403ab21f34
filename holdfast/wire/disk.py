"""What the system says of a disk, asked in one place."""

from __future__ import annotations

import errno
from typing import Final

# An `OSError` with one of these: the disk is full, or this user's part of it, or a file may not
# grow. Nothing is broken, and the same write succeeds when there is room.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
