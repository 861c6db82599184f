"""Performance and quality, shown as ratios in one run against a named baseline; never timed tests."""
