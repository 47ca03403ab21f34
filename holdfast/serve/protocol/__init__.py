"""The Open Inference Protocol v2: REST (JSON and raw tensors) and gRPC.

- `tensors`      a request and its answer as values; tensors as raw bytes and as JSON
- `rest`         bodies of REST, and what a signature asks of a request
- `messages`     messages of gRPC
- `errors`       what an error looks like outside
- `marks`        names that both protocols use
- `openapi`      the REST surface, described
- `management`   loading and unloading by operators
- `grpc_server`  answers calls; the only one of these that touches a network
"""
