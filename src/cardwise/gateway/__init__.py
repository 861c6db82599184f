"""The gateway: HTTP/1.1 before the replicas of a service, letting in what they can do (docs/concepts/queue.md)."""
