"""Adapters: one module per outside system. Here its files, objects and errors become ours, and nowhere else."""
