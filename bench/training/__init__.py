"""Training: the sum of gradients beside Gloo's all-reduce, a step beside plain DDP."""
