"""From a model's facts to what it takes of a card: bytes, the slice to ask for, replicas, and the engine's own flags.

Pure, as all of the core. Refuses to guess what it was not told: a rule of thumb is named as one.
"""
