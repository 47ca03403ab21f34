"""Mean teacher: a tracked teacher gives targets under dropout noise and follows the student in a hook."""
# expect: same
import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def net():
    return nn.Sequential(nn.Linear(6, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 3))


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(7)
    data = TensorDataset(torch.randn(192, 6, generator=g), torch.randint(-1, 3, (192,), generator=g))
    student = net()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam(student.parameters(), lr=3e-3)
    run.track(student=student, teacher=teacher, optimizer=optimizer)

    @torch.no_grad()
    def follow(run):
        alpha = min(1 - 1 / (run.completed + 1), 0.95)
        for t, s in zip(teacher.parameters(), student.parameters()):
            t.mul_(alpha).add_(s, alpha=1 - alpha)
        for t, s in zip(teacher.buffers(), student.buffers()):
            t.copy_(s)

    run.every(1, follow)
    for x, y in run.batches(data, lane_batch=4, epochs=4):
        out = student(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            target = teacher(x + 0.1 * torch.randn_like(x)).softmax(1)
        labelled = y >= 0
        loss = F.mse_loss(out.softmax(1), target)
        if labelled.any():
            loss = loss + F.cross_entropy(out[labelled], y[labelled])
        run.step(loss)

    published_1 = run.publish(student, "student")
    published_2 = run.publish(teacher, "teacher")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
