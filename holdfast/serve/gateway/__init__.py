"""The gateway: one address for all services, answered by Envoy, which is driven by files.

    python -m holdfast.serve.gateway --cluster DIR --name NAME --region R --listen HOST:PORT

- `state`      what a gateway knows, as values
- `keeping`    what stays known when facts vanish (pure)
- `sane`       only what Envoy understands (pure)
- `arms`       which share of the requests goes to which version (pure)
- `clusters`, `routes`, `listener`, `keys`  the parts of Envoy's configuration (pure)
- `resources`  all of it: `resources(state) -> {file: JSON}` (pure)
- `files`, `admin`, `envoy`  writing the files, asking Envoy, running it
- `applying`   brings what `resources` says into Envoy, in an order that loses no request
- `watching`   services, courses and replicas, from the coordination plane
- `memory`     the last knowledge, on disk: a gateway starts without the plane
- `gateway`    the loop; `main` the process

Requests never pass through Python. Envoy outlives the gateway's process; the next one adopts it.
"""
