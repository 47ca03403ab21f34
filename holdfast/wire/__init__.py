"""What travels between processes, and what they must agree on: values and their one spelling,
errors, tokens, names, shared limits, protobuf schemas.

The lowest floor: it imports nothing of Holdfast.
"""
