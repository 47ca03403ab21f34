"""Chance that everyone can repeat: seeds and shuffles as pure functions of numbers and names.

Nothing here keeps a state, so a lane that moves to another worker draws the same numbers there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Final

import torch

# Enough rounds that a shuffle of a few hundred samples shows no pattern.
_ROUNDS: Final = 8
_MIX: Final = 0x45D9F3B  # a 27-bit multiplier: the product with 32 bits stays within an int64
_MASK: Final = 0xFFFFFFFF


def seed_of(*parts: int | str) -> int:
    """A seed of 63 bits that depends on every part and on their order."""
    digest = blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_everything(seed: int) -> None:
    """Seed torch (every device), Python's `random` and, where it is in use, NumPy's old generator.
    A generator that the user made is the user's to seed."""
    # The same numbers as by `torch.manual_seed`, which also asks every kind of device whether it is
    # there, and leaves a note for those that may come, with the whole stack as text: 0.3 ms.
    generators = torch.cuda.default_generators  # those of initialised devices
    if _has_devices() and not generators:
        torch.manual_seed(seed)
    else:
        for generator in (torch.default_generator, *generators):
            generator.manual_seed(seed)
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & _MASK)


def drawn() -> bytes:
    """Where the generators stand: the same after the same seed and equally many draws."""
    digest = blake2b(torch.default_generator.get_state().numpy().data, digest_size=16)
    digest.update(repr(random.getstate()).encode())
    if numpy := sys.modules.get("numpy"):
        digest.update(repr(numpy.random.get_state()).encode())
    return digest.digest()


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """Whatever is drawn within, what is drawn afterwards is as if nothing had been."""
    numpy = sys.modules.get("numpy")
    ours, theirs = random.getstate(), numpy.random.get_state() if numpy else None
    devices = list(range(torch.cuda.device_count())) if _has_devices() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(ours)
            if numpy and theirs is not None:
                numpy.random.set_state(theirs)


@cache
def _has_devices() -> bool:
    """Whether torch finds anything to compute on besides the host. Asked in workers only: before a
    fork nobody may ask."""
    kinds = (torch.cuda, torch.backends.mps, torch.xpu, torch.mtia)
    return any(kind.is_available() for kind in kinds)


def shuffled(positions: torch.Tensor, size: int, seed: int) -> torch.Tensor:
    """Where each position lands in a shuffle of `size`: a permutation that is never stored.

    A Feistel network over the next power of two; whoever lands outside walks on until inside.
    """
    if size <= 1:
        return positions
    bits = max(2, (size - 1).bit_length())
    keys = [seed_of(seed, number) & _MASK for number in range(_ROUNDS)]
    placed = _network(positions, bits, keys)
    while bool((outside := placed >= size).any()):
        placed[outside] = _network(placed[outside], bits, keys)
    return placed


def _network(values: torch.Tensor, bits: int, keys: list[int]) -> torch.Tensor:
    left_bits, right_bits = bits // 2, bits - bits // 2
    left, right = values >> right_bits, values & ((1 << right_bits) - 1)
    for key in keys:
        # The halves change places and sizes; an even number of rounds brings the sizes back.
        mixed = (right ^ key) & _MASK
        mixed = ((mixed ^ (mixed >> 16)) * _MIX) & _MASK
        mixed = ((mixed ^ (mixed >> 15)) * _MIX) & _MASK
        mixed = (mixed ^ (mixed >> 16)) & ((1 << left_bits) - 1)
        left, right = right, left ^ mixed
        left_bits, right_bits = right_bits, left_bits
    return (left << right_bits) | right
