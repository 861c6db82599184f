"""A real Kubernetes control plane for tests: etcd, API server, scheduler and controller manager on loopback."""
