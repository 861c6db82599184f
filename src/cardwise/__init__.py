"""Cardwise: many inference services share GPU cards on Kubernetes, safely and densely.

The folder list is the story of the system; README.md has the map.
"""

__version__ = "0.1.0"
