"""A seasonal forecast by statsmodels, in a process of its own. The only module that imports it.

Importing statsmodels costs some 130 MiB and seconds, a fit another second of one core: too much for a program that
acts every second. So ``python -m cardwise.adapters.seasonal`` reads a history on stdin, writes what is expected, and
ends, and what it took is given back. Without the extra ``forecast`` there is no forecast, with a reason that says what
to install.

The model: STL takes the season away, robust against single bad hours, simple exponential smoothing carries the rest
on. Source: Cleveland et al., "STL: A Seasonal-Trend Decomposition Procedure Based on Loess" (1990); statsmodels,
STLForecast.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import warnings

import msgspec
import numpy as np

from cardwise.core.arrays import FloatArray
from cardwise.core.fleet.forecast import Forecast, NoForecast, Refusal, forecast

TIMEOUT_S = 120.0
INSTALL = "statsmodels is not installed: install cardwise[forecast]"


class Asked(msgspec.Struct):
    """What the process is asked. history: per hour, None where nothing was measured."""

    history: list[float | None]
    steps: int


class Answered(msgspec.Struct):
    """What it answers: a forecast, or why there is none."""

    expected: list[float] = []
    margin: float = 0.0
    error_share: float = 0.0
    season_steps: int = 0
    why: NoForecast | None = None
    text: str = ""


async def forecast_aside(history: FloatArray, steps: int, *, timeout_s: float = TIMEOUT_S) -> Forecast | Refusal:
    """As :func:`~cardwise.core.fleet.forecast.forecast`, beside this process. A process that fails is a refusal."""
    asked = Asked([float(value) if math.isfinite(value) else None for value in history], steps)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate(msgspec.json.encode(asked))
    except TimeoutError:
        return Refusal(NoForecast.FAILED, f"no forecast within {timeout_s:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    try:
        told = msgspec.json.decode(out, type=Answered)
    except msgspec.DecodeError:
        last = err.decode(errors="replace").strip().rpartition("\n")[2]
        return Refusal(NoForecast.FAILED, f"the forecast's process ended with {process.returncode}: {last[:200]}")
    if told.why is not None:
        return Refusal(told.why, told.text)
    return Forecast(np.array(told.expected, dtype=np.float64), told.margin, told.error_share, told.season_steps)


def stl(past: FloatArray, season: int, steps: int) -> FloatArray:
    """The next steps after a history without gaps. Raises ValueError if there is no fit."""
    try:
        from statsmodels.tsa.forecasting.stl import STLForecast  # noqa: PLC0415 - only in this process, and late
        from statsmodels.tsa.holtwinters import ExponentialSmoothing  # noqa: PLC0415
    except ImportError as exc:
        raise ValueError(INSTALL) from exc
    told = {"trend": None, "initialization_method": "estimated"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that did not converge; how good it is, the held-out day says
        try:
            fit = STLForecast(past, ExponentialSmoothing, model_kwargs=told, period=season, robust=True).fit()
            return np.asarray(fit.forecast(steps), dtype=np.float64)
        except (ValueError, ArithmeticError, np.linalg.LinAlgError) as exc:
            raise ValueError(f"no fit: {exc}") from exc


def main() -> None:
    """One question on stdin, one answer on stdout."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    history = np.array([math.nan if each is None else each for each in asked.history], dtype=np.float64)
    found = forecast(history, asked.steps, stl)
    if isinstance(found, Refusal):
        answer = Answered(why=found.why, text=found.text)
    else:
        answer = Answered(found.expected.tolist(), found.margin, found.error_share, found.season_steps)
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
