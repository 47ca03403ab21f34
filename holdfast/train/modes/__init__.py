"""The ways to combine what workers computed; the user's loop is the same in all.

- `training_loop`   synchronous: lane after lane, step after step, view after view; it says what its
  parts are (`run_state`, `current_lane`, `view_changes`, `collective`)
- `local`           averages after every H steps, with an outer optimizer
- `asynchronous`    parameter servers, sharded, with bounded staleness
- `updating`, `adjusting`   the optimizer's step, and what settings change in it
"""
