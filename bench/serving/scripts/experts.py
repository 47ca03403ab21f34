"""A model of more than 100 MB of which each row uses only a part: 26 experts of 4 MB.

So a request is quick, and every page of the weights is used by somebody.
"""

from __future__ import annotations

import torch
from torch import nn

EXPERTS = 26
WIDTH = 1024
INPUTS = 32


class Experts(nn.Module):
    """The largest of the first `EXPERTS` inputs chooses the expert."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, WIDTH, bias=False)
        self.experts = nn.Parameter(torch.empty(EXPERTS, WIDTH, WIDTH))
        self.last = nn.Linear(WIDTH, 10, bias=False)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        chosen = x[:, :EXPERTS].argmax(1).tolist()
        hidden = torch.relu(self.first(x))
        rows = [row @ self.experts[one] for row, one in zip(hidden, chosen, strict=True)]
        return {"y": self.last(torch.stack(rows))}
