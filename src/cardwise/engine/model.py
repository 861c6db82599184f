"""What the emulated card costs: pure formulas, so that a test can compare a measured time with a known number.

Refuses to know a clock or a request: rows and counts in, seconds out.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from enum import StrEnum


class DeviceKind(StrEnum):
    """How requests share the card."""

    SERIAL = "serial"
    CONTENDED = "contended"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an idle card: t0_s for a batch of any size (launch, weights read once), t1_s for each row in it."""

    t0_s: float
    t1_s: float

    def batch_time_s(self, rows: int) -> float:
        """Time of one batch, alone on the card: ``t0 + t1 * rows``.

        Source: linear batch cost, as Clipper and Nexus measure it; each row's share falls as the batch grows.
        """
        return self.t0_s + self.t1_s * rows

    def capacity(self, rows: int) -> float:
        """Rows per second of a serial card that is always given batches of this size."""
        return rows / self.batch_time_s(rows)


@dataclass(frozen=True, slots=True)
class Contention:
    """What simultaneous requests do to each other, by the Universal Scalability Law.

    sigma: share of the work that waits for the others (memory bandwidth); kappa: what each pair costs (caches).
    """

    sigma: float
    kappa: float

    def inflation(self, n: int) -> float:
        """Latency with n at a time over latency alone: ``1 + sigma (n-1) + kappa n (n-1)``; 1 for n <= 1.

        Source: Gunther's USL, whose throughput is ``n / inflation(n)`` times that of one.
        """
        return 1.0 if n <= 1 else 1.0 + self.sigma * (n - 1) + self.kappa * n * (n - 1)

    def speedup(self, n: int) -> float:
        """Throughput with n at a time over throughput with one."""
        return n / self.inflation(n)

    def knee(self) -> float:
        """The n at which throughput is highest, ``sqrt((1 - sigma) / kappa)``; infinite without kappa."""
        if self.kappa == 0:
            return math.inf
        return math.sqrt(max(0.0, 1.0 - self.sigma) / self.kappa)


SERIAL_COST = Cost(0.004, 0.00035)
"""230 rows/s one by one, 2105 rows/s in batches of 32: the device of the comparison with other servers."""
CONTENDED_COST = Cost(0.020, 0.0)
CONTENTION = Contention(0.1, 0.036)
"""With 20 ms alone: the knee is at 5 (118 requests/s), and 50 at a time get 5 of the 118."""


@dataclass(frozen=True, slots=True)
class Jitter:
    """Noise on a batch's time: log-normal of mean 1 with this coefficient of variation; a share of batches stalls."""

    cv: float = 0.0
    stall_share: float = 0.0
    stall_s: float = 0.0

    def applied(self, work_s: float, dice: random.Random) -> float:
        """The time with noise. Two numbers are drawn per call whatever they are used for: same seed, same noise."""
        if self == _QUIET:
            return work_s
        normal, stall = dice.gauss(0.0, 1.0), dice.random()
        variance = math.log1p(self.cv**2)
        noisy_s = work_s * math.exp(math.sqrt(variance) * normal - variance / 2)
        return noisy_s + (self.stall_s if stall < self.stall_share else 0.0)


_QUIET = Jitter()


@dataclass(frozen=True, slots=True)
class TokenCost:
    """A language model under continuous batching: every step gives each running sequence one token."""

    kind: DeviceKind
    cost: Cost
    contention: Contention
    prefill_s: float
    """Seconds per prompt token, in the step that takes the prompt in."""

    def step_s(self, sequences: int, prompt_tokens: int) -> float:
        """Time of one step: on a serial card ``t0 + t1 n``; on a contended one ``(t0 + t1) * inflation(n)``."""
        prefill_s = self.prefill_s * prompt_tokens
        if self.kind == DeviceKind.SERIAL:
            return self.cost.batch_time_s(sequences) + prefill_s
        return self.cost.batch_time_s(1) * self.contention.inflation(sequences) + prefill_s
