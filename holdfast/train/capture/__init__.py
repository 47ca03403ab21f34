"""The body of a loop as a function, captured once as a CUDA graph and replayed for each lane.

`deciding` says what may be captured, and why something may not; `graph` is the graph with its
memory; `lane` is what a script calls. See `Run.lane`.
"""
