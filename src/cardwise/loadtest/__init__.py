"""Load tests: open and closed loop, the knee, the curve as one JSON, the comparison of two. See docs/howto/loadtest.md."""
