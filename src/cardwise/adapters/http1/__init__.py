"""HTTP/1.1 for the data plane: asyncio protocols, parsed by httptools. What others pay once, a proxy pays twice."""
