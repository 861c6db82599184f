"""How much enters a replica: backlog, batch, limit, retry. Pure rules; times are arguments, in seconds."""
