"""What decides: the state of the broker and everything that changes it. Pure: no I/O, no clock.

What is logged goes through `state.BrokerState.apply(command, now_ms)`; groups that live
(`groups.GroupTable`) and fetch sessions are known only while the process runs.
"""
