"""The controller program: what changes while things run. One replica works; each loop is a module."""
