"""Which node and card gets the replica: filter, score, choose, explain.

A filter or score is a function from arrays to an array; a policy weighs them; ``choose`` takes the best.
"""
