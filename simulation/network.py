"""Messages between agents, coordinators and workers: late, lost, doubled, out of order."""

from __future__ import annotations

from typing import Final

from simulation.faults import Faults
from simulation.kernel import Action, Kernel, SimulatedProcess

LATENCY_S: Final = (0.001, 0.008)
# What a late message is late by: longer than many steps, shorter or longer than a session.
LATE_S: Final = (0.05, 4.0)


class Network:
    """Carries messages. Nothing reaches those who are `deaf` now, nothing comes from those who are
    `mute`; who is cut off is both. `parted` holds pairs of machines: nothing passes from the first
    to the second."""

    def __init__(self, kernel: Kernel, faults: Faults) -> None:
        self._kernel = kernel
        self._faults = faults
        self.deaf: set[str] = set()
        self.mute: set[str] = set()
        self.parted: set[tuple[str, str]] = set()

    def heal(self) -> None:
        """Everybody reaches everybody."""
        self.deaf.clear()
        self.mute.clear()
        self.parted.clear()

    def latency_s(self) -> float:
        """How long one way takes this time."""
        kernel = self._kernel
        if self._faults.strikes("delay"):
            return kernel.between(*LATE_S)
        return kernel.between(*LATENCY_S)

    def send(
        self,
        machine: str,
        target: SimulatedProcess,
        target_machine: str,
        action: Action,
        lost: Action = lambda: None,
    ) -> None:
        """From `machine` to `target`: `action` happens there if it arrives and finds it alive.
        `lost` is told when the network has lost it, as a broken connection tells its sender.

        A message is for the life that it was sent to: a process that was started since has
        other connections. Within a machine nothing is lost.
        """
        faults, kernel = self._faults, self._kernel
        life = target.life
        if machine == target_machine:
            kernel.after_for(0.0005, action, target, life)
            return
        parted = self.parted and (machine, target_machine) in self.parted
        if machine in self.mute or parted or faults.strikes("drop"):
            lost()
            return

        def deliver() -> None:
            if target_machine in self.deaf:
                lost()
            elif target.life == life:
                target.arrive(action)

        kernel.after(self.latency_s(), deliver)
        if faults.strikes("double"):
            kernel.after(self.latency_s(), deliver)
