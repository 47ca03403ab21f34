"""What is trained: the model, its data, its loss, and its optimizer, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

LANES = 8


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.attend(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        found: torch.Tensor = x + self.mlp(self.between(x))
        return found


class GPT(nn.Module):
    def __init__(self, words: int = 32768, width: int = 768, depth: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
        self.blocks = nn.Sequential(*(Block(width, width // 64) for _ in range(depth)))
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            h = self.words(x) + self.places.weight[: x.shape[1]]
            logits = self.last(self.blocks(h)) @ self.words.weight.T
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), y.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(before, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, after, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(x) + self.short(x))


class ResNet(nn.Module):
    """The blocks of ResNet-50, for images of 64 x 64."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
        ]
        before = 64
        for number, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
            for place in range(depth):
                layers.append(Bottleneck(before, width, 2 if number and not place else 1))
                before = 4 * width
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(before, 1000)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            logits = self.head(self.body(x))
        return functional.cross_entropy(logits.float(), y)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)
        )
        self.head = nn.Linear(2048, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(functional.relu(self.body(x))), y)


@dataclass(frozen=True)
class Work:
    make: Callable[[], nn.Module]
    sample: Callable[[int, torch.Generator], tuple[torch.Tensor, torch.Tensor]]
    lane_batch: int

    def data(self, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
        chance = torch.Generator().manual_seed(7)
        return self.sample(steps * LANES * self.lane_batch, chance)


def _tokens(count: int, chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(0, 32768, (count, 513), generator=chance)
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _images(count: int, chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 64, 64, generator=chance), torch.randint(
        0, 1000, (count,), generator=chance
    )


def _digits(count: int, chance: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 784, generator=chance), torch.randint(
        0, 10, (count,), generator=chance
    )


WORKS: dict[str, Work] = {
    "gpt": Work(GPT, _tokens, 8),
    "resnet": Work(ResNet, _images, 32),
    "mlp": Work(MLP, _digits, 128),
    "tiny": Work(MLP, _digits, 2),
}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def compiled(model: nn.Module, mode: str) -> Any:
    return model if mode == "eager" else torch.compile(model, mode=mode)
