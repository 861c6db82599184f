"""What the queue layer survives: a real gateway before real replicas, under load, while things break.

Refuses to measure speed: every figure that decides is a count. Run: ``python -m benchmarks.faults [--minutes 3]``
"""
