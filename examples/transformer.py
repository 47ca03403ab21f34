"""Teaches a transformer to write Python, from the library that comes with Python itself.

    python examples/transformer.py                                # small, alone
    holdfast run examples/transformer.py --workers 2 --lanes 4    # the same bits on two workers
    holdfast run examples/transformer.py --workers 2 --lanes 4 --gpu 1 --gpu-share 2 \\
        --set width=768 --set depth=14 --set lane_batch=8         # about 100 M parameters

On a GPU it computes in bf16. Workers that share one GPU give the same bits as one worker alone.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from holdfast import train

SIZE_BYTES = 4 * 1024 * 1024


class Text(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Pieces of the library's source, and the same pieces one byte later."""

    def __init__(self, length: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))[:SIZE_BYTES]
        self._bytes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        self._length = length

    def __len__(self) -> int:
        return (len(self._bytes) - 1) // self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = index * self._length
        piece = self._bytes[first : first + self._length + 1].long()
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.merge(seen.transpose(1, 2).reshape(batch, length, width))
        thought: torch.Tensor = x + self.think(x)
        return thought


class Writer(nn.Module):
    """Reads bytes, says which byte comes next."""

    def __init__(self, width: int, depth: int, length: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.letters = nn.Embedding(256, width)
        self.places = nn.Embedding(length, width)
        blocks = [Block(width, max(1, width // 64), dropout) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.after = nn.LayerNorm(width)
        self.say = nn.Linear(width, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        x = self.blocks(self.letters(text) + self.places(places))
        said: torch.Tensor = self.say(self.after(x))
        return said


def main(run: train.Run) -> None:
    settings = run.settings
    model = Writer(settings.width, settings.depth, settings.length).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=20)
    run.track(model=model, optimizer=optimizer, warm_up=warm_up)
    run.clip(1.0)
    last = settings.steps
    run.every(10, lambda run: print(f"step {run.completed:4}  loss {run.metrics['loss']:.4f}"))
    for batch in run.batches(Text(settings.length), lane_batch=settings.lane_batch, epochs=None):
        with torch.autocast(run.device.type, torch.bfloat16, enabled=run.device.type == "cuda"):
            found = model(batch.x)
            loss = functional.cross_entropy(found.flatten(0, 1).float(), batch.y.flatten())
        if run.completed + 1 >= last:
            run.stop_early()  # before run.step: this step is the last
        run.step(loss)
    found = run.publish(model, "writer")
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e6:.1f} M parameters, loss {run.metrics['loss']:.4f}")
    print(f"weights  {found.digest}")


if __name__ == "__main__":
    train.launch(
        main,
        lanes=4,
        settings={
            "lr": 1e-3,
            "width": 64,
            "depth": 2,
            "length": 128,
            "lane_batch": 4,
            "steps": 40,
        },
    )
