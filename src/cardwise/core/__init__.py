"""The rules: pure functions and values over numpy arrays. No I/O, no clock, no Kubernetes types.

Replay, ``tune``, ``explain`` and the programs in the cluster all ask the same core: what is simulated is what runs.
"""
