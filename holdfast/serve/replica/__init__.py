"""One process of a service: it holds versions side by side, and answers requests with them.

    python -m holdfast.serve.replica SERVICE

- `engine`      which version answers, and what was counted
- `batching`    requests become batches while the model is busy
- `versions`    loads, warms, checks and unloads, beside the requests: `aside`
- `trial`       a version is tried in a process of its own first; `model_cache` what stays on disk
- `following`   the coordination plane: what to hold, and what this replica has
- `http`        the REST surface: `requests` as values, `bodies` of other dialects
- `listening`   the servers for HTTP and gRPC; `connection` one client's bytes
- `main`        puts them together: options, TLS, draining

It goes on with what it has while the coordination plane, its agent or the store are away.
"""
