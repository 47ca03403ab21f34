"""Every time-out and limit, with its unit last in the name and the reason for its value.

One package, so that a bound is found, questioned and changed in one place; a module for each part
of the house. Import from here.
"""

from __future__ import annotations

from holdfast.wire.limits.agent import *  # noqa: F403
from holdfast.wire.limits.client import *  # noqa: F403
from holdfast.wire.limits.control import *  # noqa: F403
from holdfast.wire.limits.http import *  # noqa: F403
from holdfast.wire.limits.launch import *  # noqa: F403
from holdfast.wire.limits.models import *  # noqa: F403
from holdfast.wire.limits.people import *  # noqa: F403
from holdfast.wire.limits.rpc import *  # noqa: F403
from holdfast.wire.limits.serve import *  # noqa: F403
from holdfast.wire.limits.server import *  # noqa: F403
from holdfast.wire.limits.shared import *  # noqa: F403
from holdfast.wire.limits.storage import *  # noqa: F403
from holdfast.wire.limits.train import *  # noqa: F403
