"""What was said last, so that a loop says what lasts once, and not at every turn.

Refuses to know what is said, to whom and how loud: log, event and condition ask it alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

AGAIN_S = 300.0
"""What has not changed is said again after so long: whoever looks at the last minutes of a log shall find it."""
MOST_REMEMBERED = 4096
"""For things that others make, such as pods: they may be any number."""


@dataclass(slots=True)
class Said:
    """What was said of each thing last, and when. again_s: after so long the same is said again.

    now_s: a clock that never goes back. most: things that are remembered; with one more all are forgotten.
    """

    now_s: Callable[[], float] = time.monotonic
    again_s: float = AGAIN_S
    most: float = math.inf
    _said: dict[Hashable, tuple[object, float]] = field(default_factory=dict)

    def is_news(self, of: Hashable, what: object) -> bool:
        """Whether to say this now; then it counts as said."""
        before, now_s = self._said.get(of), self.now_s()
        if before is not None and before[0] == what and now_s - before[1] < self.again_s:
            return False
        if len(self._said) >= self.most:
            self._said.clear()
        self._said[of] = what, now_s
        return True

    def forget(self, of: Hashable) -> None:
        """It was not said after all, or is over: the next time it is news."""
        self._said.pop(of, None)

    def keep(self, those: Collection[Hashable]) -> None:
        """Forget all others."""
        self._said = {of: said for of, said in self._said.items() if of in those}

    def forget_old(self) -> None:
        """Forget what would be said again anyway."""
        now_s = self.now_s()
        self._said = {of: (what, at_s) for of, (what, at_s) in self._said.items() if now_s - at_s < self.again_s}
