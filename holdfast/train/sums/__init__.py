"""The sum of all lanes' gradients, in one order, whoever computed them.

- `tree`       the fixed binary tree of lanes
- `gradients`, `buffers`   where gradients and their partial sums lie
- `stepping`, `exchange`   a step: partial sums go out as they are ready, and come back as the sum
- `exchange_plan`, `transport`, `over_tcp`, `over_memory`, `over_levels`   who sends what, over what
- `nccl`       what bytes travel over between GPUs, where the network is trusted
- `lending`    who computes the lanes of a member that is far slower
- `checking`   whether everybody computes right
- `compression`   fewer bytes on the way
- `step_records`   what is said of lanes beside their gradients
"""
