"""A process that writes blobs until somebody ends it.

    python -m tests.faults.storage_process ADDRESS SEED

It says `open`, then the key and the digest of each blob that is durable. Every third write replaces
`changing`; the others are named by their content.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from holdfast.storage import open_store
from holdfast.storage.keys import content_key, digest_of

SIZES = (1_000, 300_000, 9_000_000)


def writes(seed: int) -> Iterator[tuple[str, bytes]]:
    """What the process with this seed writes: keys and bytes."""
    chance = random.Random(seed)
    while True:
        data = chance.randbytes(chance.choice(SIZES))
        changing = chance.random() < 1 / 3
        yield "changing" if changing else content_key("things", digest_of(data)), data


def main(address: str, seed: str) -> None:
    blobs = open_store(address)
    print("open", flush=True)
    for key, data in writes(int(seed)):
        blobs.put(key, data)
        print(key, digest_of(data), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
