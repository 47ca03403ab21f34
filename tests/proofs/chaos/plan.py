"""What a run does: its seed, its time, its cast. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tests.proofs.chaos.cast import ALONE, ENSEMBLE, STORE, Cast
from tests.proofs.chaos.drawing import draw
from tests.proofs.chaos.script import Chaos

MODELS: Final = ("mlp", "convnet", "transformer")
STORES: Final = ("s3", "folder")


@dataclass(frozen=True)
class Plan:
    """What a run does. The same seed, time, cast, network and disks draw the same script."""

    seed: int
    minutes: float = 30.0
    ensemble: bool = False
    namespaces: bool = True
    disks: bool = True
    store: str = "s3"
    rate: float = 20.0
    epochs: int = 40
    models: tuple[str, ...] = MODELS

    @property
    def cast(self) -> Cast:
        cast = ENSEMBLE if self.ensemble else ALONE
        return replace(cast, store=STORE) if self.store == "s3" else cast

    @property
    def seconds(self) -> float:
        return self.minutes * 60.0

    def script(self) -> Chaos:
        return draw(self.seed, self.seconds, self.cast, links=self.namespaces, disks=self.disks)

    def command(self) -> str:
        words = f"python -m tests.proofs.chaos --minutes {self.minutes:g} --seed {self.seed}"
        words += f" --rate {self.rate:g} --epochs {self.epochs} --models {' '.join(self.models)}"
        words += f" --store {self.store}" + (" --ensemble" if self.ensemble else "")
        words += "" if self.namespaces else " --no-namespaces"
        return words + ("" if self.disks else " --no-disks")
