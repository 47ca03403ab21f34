"""The sum of all lanes' gradients, in one order, whoever computed them.

- `tree`       the fixed binary tree of lanes
- `gradients`, `buffers`, `buckets`   where gradients lie, and in which pieces they travel
- `exchange`, `stepping`   a step: sums go out as they are ready, and come back whole
- `compression`, `powersgd`, `codes`   fewer bytes on the way
- `words`      what is said of lanes beside their gradients
"""
