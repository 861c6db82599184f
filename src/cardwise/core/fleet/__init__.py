"""What should change while it runs: rules of the cluster, without I/O, clock or Kubernetes."""
