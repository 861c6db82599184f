"""An emulated inference engine: a server whose speed is a formula, for tests, demos and benchmarks of the queue layer.

No model is run and no card is used. What a request costs is known beforehand, so that a gateway's gain is a ratio of
known numbers; what it computes is a checksum of each row, so that a row that was lost, swapped or sent twice is seen.
It is no server for the open network: whoever reaches its port is believed.
"""
