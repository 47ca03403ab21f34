"""Messages between agents, coordinators and workers: late, lost, doubled, out of order."""

from __future__ import annotations

from typing import Final

from simulation.faults import Faults
from simulation.kernel import Action, Being, Kernel

LATENCY_S: Final = (0.001, 0.008)
# What a late message is late by: longer than many steps, shorter or longer than a session.
LATE_S: Final = (0.05, 4.0)


class Network:
    """Carries messages. `cut` holds the names of those whom nothing reaches now, `parted` pairs
    of machines that do not reach each other."""

    def __init__(self, kernel: Kernel, faults: Faults) -> None:
        self._kernel = kernel
        self._faults = faults
        self.cut: set[str] = set()
        self.parted: set[frozenset[str]] = set()

    def latency_s(self) -> float:
        """How long one way takes this time."""
        kernel = self._kernel
        if self._faults.strikes("delay"):
            return kernel.between(*LATE_S)
        return kernel.between(*LATENCY_S)

    def send(self, machine: str, target: Being, target_machine: str, action: Action) -> None:
        """From `machine` to `target`: `action` happens there if it arrives and finds it alive.

        A message is for the life that it was sent to: a process that was started since has
        other connections. Within a machine nothing is lost.
        """
        faults = self._faults
        life = target.life
        if machine == target_machine:
            self._kernel.after(0.0005, lambda: _arrive(target, life, action))
            return
        if self.parted and frozenset((machine, target_machine)) in self.parted:
            return
        if machine in self.cut or faults.strikes("drop"):
            return
        for _ in range(2 if faults.strikes("double") else 1):
            self._kernel.after(
                self.latency_s(), lambda: self._deliver(target, life, target_machine, action)
            )

    def _deliver(self, target: Being, life: int, target_machine: str, action: Action) -> None:
        if target_machine not in self.cut:
            _arrive(target, life, action)


def _arrive(target: Being, life: int, action: Action) -> None:
    if target.life == life:
        target.arrive(action)
