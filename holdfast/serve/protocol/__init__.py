"""The Open Inference Protocol v2: REST (JSON and raw tensors) and gRPC.

- `values`       a request and its answer, as a replica computes with them
- `tensors`      datatypes, and tensors as raw bytes
- `lists`        tensors as JSON
- `fitting`      what a signature asks of a request
- `rest`         bodies of REST
- `messages`     messages of gRPC
- `errors`       what an error looks like outside
- `marks`        names that both protocols use
- `openapi`      the REST surface, described
- `grpc_server`  answers calls; the only one of these that touches a network
"""
