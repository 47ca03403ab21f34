"""What every other package shares: errors, limits, clocks, logs and, later, protobuf schemas.

The lowest floor: it imports nothing of Holdfast.
"""
