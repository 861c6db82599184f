"""Tests of the Helm chart, with a real Helm and a real API server."""
