"""One process of a service: it holds versions side by side, and answers requests with them.

    python -m holdfast.serve.replica SERVICE

- `engine`      which version answers, and what was counted
- `batching`    requests become batches while the model is busy; `joining` (pure) says which may
- `versions`    loads, warms, checks and unloads, beside the requests: `aside`, `preparing`
- `trial`       a version is tried in a process of its own first; `shelf` what stays on the disk
- `following`   the coordination plane: what to hold, and what this replica has
- `http`        the REST surface: `asking` is a request; `paths`, `plain` (pure), `describing`
- `listening`   the HTTP server: `connection`, `reading`, `replies` (pure), `patience`
- `memory`      what large requests took goes back to the system
- `main`        puts them together; draining; `options` what it is told when it is started

It goes on with what it has while the coordination plane, its agent or the store are away.
"""
