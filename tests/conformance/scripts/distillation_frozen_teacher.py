"""Distillation: teacher and student are tracked before the first loop; the teacher is frozen in eval mode between the loops."""
# expect: same
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from holdfast import train


def main(run: train.Run) -> None:
    g = torch.Generator().manual_seed(218)
    data = TensorDataset(torch.randn(144, 6, generator=g), torch.randint(0, 3, (144,), generator=g))
    teacher = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    student = nn.Linear(6, 3)
    teacher_optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-2)
    student_optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    run.track(teacher=teacher, student=student, teacher_optimizer=teacher_optimizer, student_optimizer=student_optimizer)
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        run.step(F.cross_entropy(teacher(x), y), only=teacher_optimizer)
    teacher.eval().requires_grad_(False)
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    for x, y in run.batches(data, lane_batch=4, epochs=3):
        soft = (teacher(x) / 2).softmax(1)
        kd = F.kl_div((student(x) / 2).log_softmax(1), soft, reduction="batchmean") * 4
        run.step(0.5 * kd, 0.5 * F.cross_entropy(student(x), y), only=student_optimizer)
    assert run.completed == 36
    # a restarted job passes over the loops that are done, and `before` is then the end's: still equal
    assert all(torch.equal(before[k], v) for k, v in teacher.state_dict().items())

    published_1 = run.publish(teacher, "teacher")
    published_2 = run.publish(student, "student")
    if run.first:
        print("SHA", published_1.digest)
        print("SHA", published_2.digest)


if __name__ == "__main__":
    train.launch(main, lanes=6)
