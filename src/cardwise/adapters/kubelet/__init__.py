"""The kubelet's gRPC: its device plugin API, which the agent serves, and its pod resources API, which it asks."""
