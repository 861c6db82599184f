"""``[rescue]`` of the controller's settings."""

from __future__ import annotations

import msgspec

from cardwise.core.fleet.grounds import Patience
from cardwise.core.fleet.rescue import RescuePolicy


class RescueSettings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """Seconds, all but ``most`` and ``at_once``. See :class:`RescuePolicy` and :class:`Patience`."""

    enabled: bool = True
    most: int = 20
    window_s: float = 300.0
    at_once: int = 2
    settle_s: float = 15.0
    pending_s: float = 300.0
    starting_s: float = 1800.0
    rest_s: float = 600.0
    fenced_s: float = 5.0
    lost_s: float = 60.0
    mps_s: float = 60.0

    @property
    def policy(self) -> RescuePolicy:
        """As the rules take it. Raises ValueError for numbers that cannot work."""
        return RescuePolicy(
            self.most, self.window_s, self.at_once, self.settle_s, self.pending_s, self.starting_s, self.rest_s
        )

    @property
    def patience(self) -> Patience:
        """As the rules take it. Raises ValueError for numbers that cannot work."""
        return Patience(self.fenced_s, self.lost_s, self.mps_s)
