"""A/B reports: what a change did, from two windows of Prometheus' time or from two load tests."""
