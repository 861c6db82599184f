"""``cardwise up``: the scheduler's own code on a cluster that lives in this process; no cluster, no GPU.

What decides is what runs in a real cluster: ledger, extender, binder, webhook rules and wire contract. What stands in
for Kubernetes is small and says so: ``hollow.py`` for the API server, ``controllers.py`` for the controller manager,
``kube_cycle.py`` for kube-scheduler.
"""
