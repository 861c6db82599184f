"""The page: cards, slices, pods that wait and why, for ``cardwise up`` and for a real cluster. Read only."""
