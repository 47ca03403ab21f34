"""Bounds of models, their versions and aliases."""

from __future__ import annotations

from typing import Final

# Of a model's own traceback: what people read first, and what fits into a node of the plane.
MODEL_TRACE_LINES: Final = 12
# Moves of an alias that are kept: a year of weekly releases.
ALIAS_MOVES_KEPT: Final = 50
# Files of a version; weights, an example and a few of the model's own.
MODEL_FILES_MAX: Final = 64
# A version's record is one node of the coordination plane, read by every replica and gateway.
VERSION_BYTES_MAX: Final = 256 * 1024
# An example is one batch, fetched and computed by every replica before it serves.
EXAMPLE_BYTES_MAX: Final = 64 * 1024 * 1024
# Examples of a version: sizes that differ. Every replica computes all of them before it serves.
EXAMPLES_MAX: Final = 8
# A worker that publishes waits for a plane that is away: longer than a failover or a restart, and
# shorter than the silence after which its agent takes it for hung.
PUBLISH_S: Final = 600.0
PUBLISH_RETRY_S: Final = 1.0
# It becomes a part of paths, of clusters' names and of headers.
MODEL_NAME_CHARACTERS_MAX: Final = 63
# Tensors that travel to and from a model in a process of its own, in one piece.
APART_FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
# Until such a process has loaded its model: as long as a trial may take.
APART_LOAD_S: Final = 300.0
# One that ends is started again no sooner than this after it was started: importing takes a core.
APART_RESTART_S: Final = 2.0
# Between the end of its socket and that of the process.
APART_END_S: Final = 2.0
# Tokens that a model of texts writes unless it is told otherwise: a sentence or two.
GENERATED_TOKENS: Final = 64
