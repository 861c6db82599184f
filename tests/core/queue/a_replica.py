"""A replica that shares its processor among all requests in flight, as events in simulated time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field


def seeded(seed):
    """A source of random numbers that gives the same ones again."""
    return random.Random(seed)  # noqa: S311 - a simulation, no secret


@dataclass(frozen=True)
class Curve:
    """Answers per second with n in flight: the Universal Scalability Law. single_s: of one request alone."""

    single_s: float
    sigma: float
    kappa: float
    slow: float = 1.0

    def rate(self, n):
        return n / self.single_s / (1 + self.sigma * (n - 1) + self.kappa * n * (n - 1)) / self.slow

    @property
    def peak_n(self):
        return max(range(1, 400), key=self.rate)

    @property
    def peak(self):
        return self.rate(self.peak_n)


def curve(single_s, peak_n, peak):
    """The curve with that peak: rate(peak_n) = peak, and peak_n = sqrt((1 - sigma) / kappa)."""
    kappa = (peak_n - peak_n / (single_s * peak)) / (peak_n * (peak_n - 1) ** 2)
    return Curve(single_s, 1 - kappa * peak_n**2, kappa)


CONTENDED = (curve(0.02, 5, 118), curve(0.03, 3, 55))
SERIAL = (Curve(0.02, 1.0, 0.001), Curve(0.02, 1.0, 0.001, slow=2.0))
WIDE = (curve(0.02, 43, 380), curve(0.02, 21, 230))


@dataclass
class Told:
    """What came of a run: (time, latency) per answer."""

    answers: list = field(default_factory=list)

    def good(self, from_s, to_s, slo_s):
        return sum(from_s <= at_s < to_s and took_s <= slo_s for at_s, took_s in self.answers) / (to_s - from_s)

    def p99(self, from_s, to_s):
        took = sorted(took_s for at_s, took_s in self.answers if from_s <= at_s < to_s)
        return took[int(0.99 * len(took))] if took else math.inf


def _rate_noise(rng):
    """Of a tenth of a second: 12 % noise, and one in a hundred is a stall."""
    return 0.1 if rng.random() < 0.01 else max(rng.gauss(1, 0.12), 0.3)


def run(limiter, phases, rng, *, queue=4, load=1.3, cv=0.5):
    """Poisson arrivals at ``load`` times the peak, a queue of ``queue`` before the limiter.

    phases: (until_s, curve). Latency is counted from arrival. Work per request: gamma with that cv, mean 1.
    """
    told = Told()
    now_s = attained = arrives_s = 0.0
    noise_s, noise = 0.1, 1.0
    running, waiting, order, shape = [], deque(), itertools.count(), 1 / cv**2
    for until_s, curve_now in phases:
        rates = [0.0, *(curve_now.rate(n) for n in range(1, 201))]
        mean_s = 1 / (load * curve_now.peak)
        while now_s < until_s:
            n = len(running)
            speed = rates[n] * noise / n if n else 0.0
            done_s = now_s + max(running[0][0] - attained, 0.0) / speed if n else math.inf
            next_s = min(done_s, arrives_s, noise_s, until_s)
            attained += speed * (next_s - now_s)
            now_s = next_s
            if now_s == done_s:
                _, _, came_s, began_s = heapq.heappop(running)
                limiter.release(now_s, now_s - began_s)
                told.answers.append((now_s, now_s - came_s))
            elif now_s == arrives_s:
                arrives_s = now_s + rng.expovariate(1) * mean_s
                if len(waiting) < queue:
                    waiting.append(now_s)
            elif now_s == noise_s:
                noise_s, noise = now_s + 0.1, _rate_noise(rng)
            while waiting and limiter.acquire():
                work = rng.gammavariate(shape, 1 / shape)
                heapq.heappush(running, (attained + work, next(order), waiting.popleft(), now_s))
    return told
