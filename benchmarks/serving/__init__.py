"""The queue layer beside its peers: the gateway, batching, the limiter and the proxy path, as ratios in one run."""
