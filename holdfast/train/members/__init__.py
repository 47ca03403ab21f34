"""A worker among the others of its view: it meets them, hears them, and goes on without the lost.

- `member`, `solo`, `membership`   a worker's part in its job, with its state; or all of it alone
- `meeting`, `listener`, `greeting`, `tls`   how members find each other and agree on a state
- `mesh`, `conversation`, `wakeup`   what they say while they compute
- `effective`   which settings count
"""
