"""The avalanche: preemption without brakes, and with them, on the same day."""
