"""A fake NVML library and the nodes it plays, so that the real bindings run on a machine without a card.

``building.py`` builds it, ``scenario.py`` scripts what a node looks like, now and while a test runs.
Refuses to patch the bindings or our adapter: both run as they do beside a driver.
"""

from __future__ import annotations

from tests.fakes.nvml.building import OLD_DRIVER, build, environment, load
from tests.fakes.nvml.scenario import HOUR_MS, Node

__all__ = ["HOUR_MS", "OLD_DRIVER", "Node", "build", "environment", "load"]
