"""What a user's script imports to train.

- `link`   a worker's line to its agent; absent under a plain `python train.py`

It imports nothing of the control plane or the agent.
"""
