"""The parts of ``preempting.py``: its settings, what it sees, the snapshot it decides on, its steps, and its words."""
