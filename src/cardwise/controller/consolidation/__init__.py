"""Parts of :mod:`cardwise.controller.preempting`: healthy replicas move for a pod for which nobody may be evicted."""
