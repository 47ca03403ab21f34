"""LoRA by the peft package where it is installed; otherwise the base model is trained as it is."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train

try:
    from peft import LoraConfig, get_peft_model
except ImportError:
    get_peft_model = None


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(227)
    data = TensorDataset(torch.randn(96, 6, generator=g), torch.randint(0, 3, (96,), generator=g))
    base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    model = base
    if get_peft_model is not None:
        model = get_peft_model(base, LoraConfig(r=2, lora_dropout=0.1, target_modules=["0", "2"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    run.track(model=model, optimizer=optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        run.step(F.cross_entropy(model(x), y))

    published = run.publish(model)
    if run.first:
        print("SHA", published.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
