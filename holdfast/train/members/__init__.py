"""A worker among the others of its view: it meets them, hears them, and goes on without the lost.

- `member`, `solo`, `membership`   a worker's part in its job, or its life alone
- `meeting`, `calls`, `door`, `hello`   how members find each other and agree on a state
- `mesh`, `wires`, `conversation`, `watch`, `bell`   what they say while they compute
- `effective`, `keeping`, `replacing`   which settings count, which state is kept, who is replaced
"""
