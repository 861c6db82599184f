"""Replay: put a history's pods on its cluster again, by another policy, and count what is left over.

It asks the same core as the scheduler does: the placements it shows are the placements that would be made.
"""
