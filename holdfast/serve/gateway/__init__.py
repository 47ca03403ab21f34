"""The gateway: one address for all services, answered by Envoy, which is driven by files.

    python -m holdfast.serve.gateway --cluster DIR --name NAME --region R --listen HOST:PORT

- `state`      what a gateway knows, as values that Envoy understands; the share of each variant;
  what stays known when facts vanish (pure)
- `clusters`, `routes`, `keys`, `local_replies`  parts of Envoy's configuration (pure)
- `resources`  all of it: `resources(state) -> {file: JSON}` (pure)
- `admin`, `envoy`  asking Envoy, running it
- `applying`   writes what `resources` says into Envoy's files, in an order that loses no request
- `watching`   services, plans and replicas, from the coordination plane
- `gateway`    the loop, and the last knowledge on disk: it starts without the plane
- `main`       the process

Requests never pass through Python. Envoy outlives the gateway's process; the next one adopts it.
"""
