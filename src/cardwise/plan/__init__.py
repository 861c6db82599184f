"""The planner's room: built-in models, cards, measured overheads, and how a plan is shown and written (SPEC I1, I2)."""
