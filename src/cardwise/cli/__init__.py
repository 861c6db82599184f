"""The command line: doors only. One small module per command; what they do lives in the tools and the core."""
