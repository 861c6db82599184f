"""Load tests: open and closed loop, the knee, the curve as one JSON, the comparison of two (docs/howto/loadtest.md)."""
