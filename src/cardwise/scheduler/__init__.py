"""The scheduler: kube-scheduler's extender, the admission webhook, and the binding of pods to cards."""
