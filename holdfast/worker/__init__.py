"""A process that an agent has started: what it says to its agent, and hears from it.

- `agent_client`   its connection: views, steps, shares of checkpoints, leaving
- `sharing`        what it holds and follows with the other jobs of its queue, through the agent

Training and replicas of services stand on it, and so may any program: `AgentClient`. It imports
neither torch nor the agent.
"""

from holdfast.worker.agent_client import AgentClient

__all__ = ["AgentClient"]
