"""Random scripts, put together from parts that people use: what a part is, and how they are joined.

A script is a function of its seed, so one that fails can be made again.
"""

from __future__ import annotations

import random
from typing import Final

_HEAD: Final = '''"""A random script, seed {seed}."""
# expect: {expected}
import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

from holdfast import train

chance = torch.Generator().manual_seed({seed})
X = torch.randn({samples}, 6, generator=chance)
Y = (X.sum(1) > 0).long()
'''

_ONE_SAMPLE: Final = "a batch of one sample came to a batch norm"
_LAYERS: Final = (
    "nn.BatchNorm1d({width})",
    "nn.Dropout(0.3)",
    "nn.LayerNorm({width})",
    "nn.ReLU()",
    "nn.Tanh()",
    "nn.PReLU()",
    "nn.Linear({width}, {width})",
    "nn.utils.parametrizations.weight_norm(nn.Linear({width}, {width}))",
    "nn.utils.parametrizations.spectral_norm(nn.Linear({width}, {width}))",
)
_OPTIMIZERS: Final = (
    "torch.optim.SGD({what}, lr=0.05, momentum=0.9, nesterov=True)",
    "torch.optim.AdamW({what}, lr=0.01, amsgrad=True)",
    "torch.optim.Adagrad({what}, lr=0.05)",
    "torch.optim.RMSprop({what}, lr=0.005, centered=True)",
    "torch.optim.NAdam({what}, lr=0.005)",
    "torch.optim.Adadelta({what})",
    "Noisy({what}, lr=0.05)",
)
_NOISY: Final = """

class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.003)

"""
_SCHEDULERS: Final = (
    ("step", "torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)"),
    ("epoch", "torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)"),
    (
        "step",
        "torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=400,"
        " cycle_momentum=False)",
    ),
    ("epoch", "SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)"),
)
_HOOKS: Final = (
    """
    @run.every({every})
    def renew(_run):
        with torch.no_grad():
            model[0].weight[torch.randint(0, {width}, (1,))] = 0.1 * torch.randn(6)
""",
    """
    @run.every_epoch
    def look(run):
        found = run.evaluate(lambda b: {{"loss": functional.cross_entropy(
            model(b.x), b.y, reduction="sum")}}, data)
        run.log("seen", found["loss"])
        if found["loss"] < 0.01:
            run.stop_early()
""",
    """
    @run.before_update
    def noise(_run):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-0.5, 0.5).add_(torch.randn_like(parameter), alpha=0.001)
""",
    """
    @run.every({every})
    def shrink(_run):
        with torch.no_grad():
            model[0].bias.mul_(0.9)
        functional.cross_entropy(model(X[:8]), Y[:8]).backward()  # and forgets its gradients
""",
)
_DATA: Final = (
    "lane_batch={size}, shuffle=True",
    "lane_batch={size}, shuffle=False",
    "lane_batch={size}, drop_last=True",
    "lane_batch={size}, sampler=train.WeightedSampler([1.0 + i % 3 for i in range(len(data))])",
    "lane_batch={size}, sampler=lambda epoch, seed: range(epoch % 2, len(data) // 2 * 2, 2)",
    "batch_sampler=train.LengthBuckets([i % 17 for i in range(len(data))], buckets=4,"
    " lane_batch={size})",
    "lane_batch={size}, loader_workers=1",
)


def script(seed: int) -> str:
    """The text of the script that this seed makes."""
    chance = random.Random(seed)
    width, size = chance.choice((4, 8, 12)), chance.choice((2, 3, 4))
    samples = chance.randint(50, 130)
    parts = ["", _NOISY]
    parts.append("\ndef main(run: train.Run) -> None:\n    data = TensorDataset(X, Y)\n")
    inner = [each.format(width=width) for each in chance.choices(_LAYERS, k=chance.randint(1, 4))]
    layers = ", ".join([f"nn.Linear(6, {width})", *inner, f"nn.Linear({width}, 2)"])
    # What is left for the last step may be one sample.
    expected = f"same or refused: {_ONE_SAMPLE}" if "BatchNorm" in layers else "same"
    parts[0] = _HEAD.format(seed=seed, samples=samples, expected=expected)
    parts.append(f"    model = nn.Sequential({layers})\n")
    thaws = chance.random() < 0.3
    if thaws:
        parts.append("    model[0].requires_grad_(False)\n")
    optimizer = chance.choice(_OPTIMIZERS).format(what="model.parameters()")
    parts.append(f"    optimizer = {optimizer}\n    run.track(model=model, optimizer=optimizer)\n")
    if chance.random() < 0.5:
        when, made = chance.choice(_SCHEDULERS)
        parts.append(f'    run.track(every="{when}", scheduler={made})\n')
    averages = chance.random() < 0.5
    if averages:
        how = chance.choice(("", ", multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True"))
        parts.append(f"    mean = AveragedModel(model{how})\n    run.track(mean=mean)\n")
        parts.append(
            f"    run.every({chance.randint(1, 3)}, lambda _: mean.update_parameters(model))\n"
        )
    if thaws:
        parts.append(
            f"    run.every({chance.randint(2, 5)}, lambda _: model[0].requires_grad_(True))\n"
        )
    for hook in chance.sample(_HOOKS, k=chance.randint(0, 3)):
        parts.append(hook.format(every=chance.randint(1, 4), width=width))
    if chance.random() < 0.4:
        parts.append(f"    run.clip({chance.choice((0.1, 1.0))})\n")
    given = chance.choice(_DATA)
    if "batch_sampler" not in given and chance.random() < 0.3:
        parts.append("    run.accumulate(2)\n")
    updates = chance.choice((1, 1, 1, 2))
    parts.append(
        f"    for batch in run.batches(data, {given.format(size=size)}, epochs=2,"
        f" updates={updates}):\n"
        "        loss = functional.cross_entropy(model(batch.x), batch.y)\n"
        "        run.step(loss * (1 + 0.1 * batch.update))\n"
    )
    if averages and chance.random() < 0.5:
        parts.append("    update_bn(DataLoader(data, batch_size=16), mean)\n")
    parts.append('    found = [run.publish(model, "model").digest]\n')
    if averages:
        parts.append('    found.append(run.publish(mean, "mean").digest)\n')
    parts.append('    if run.first:\n        print("SHA", *found)\n')
    parts.append('\n\nif __name__ == "__main__":\n    train.launch(main, lanes=6)\n')
    return "".join(parts)
