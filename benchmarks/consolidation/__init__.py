"""Consolidation: the same services on the same cluster, where replicas move for who waits, and where nobody does."""
