"""The node agent: puts the scheduler's decision into the container, holds limits, watches cards, tells of its node."""
