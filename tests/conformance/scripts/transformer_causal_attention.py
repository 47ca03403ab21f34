"""A small GPT: scaled_dot_product_attention with dropout, LayerNorm, learned positions, warm-up by LambdaLR."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from holdfast import train


class Text(Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 13, (300,), generator=torch.Generator().manual_seed(254))

    def __len__(self):
        return 72

    def __getitem__(self, i):
        return self.ids[3 * i : 3 * i + 9], self.ids[3 * i + 1 : 3 * i + 10]


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d), nn.Dropout(0.1))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.tok, self.pos = nn.Embedding(13, d), nn.Parameter(0.02 * torch.randn(9, d))
        self.blocks = nn.Sequential(Block(d), Block(d))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, 13, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tok(ids) + self.pos)))


def main(run: train.Run) -> None:
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 5))
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)
    run.clip(1.0)
    for x, y in run.batches(Text(), lane_batch=3, epochs=4):
        run.step(F.cross_entropy(model(x).flatten(0, 1), y.flatten()))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
