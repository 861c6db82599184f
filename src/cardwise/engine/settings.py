"""The engine's settings, and the file with its faults: refused with every wrong value named at once."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path

from cardwise.engine.faults import Script, script_of
from cardwise.engine.model import CONTENDED_COST, CONTENTION, SERIAL_COST, Contention, Cost, DeviceKind, Jitter
from cardwise.errors import InputError, UserError
from cardwise.files import read_text
from cardwise.settings_file import MisfitError

MODEL_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""It stands in paths and in labels of metrics."""
_SHARES = ("stall_share",)
_PORTS = ("port",)


SCRIPT = (
    'a script of faults in JSON, such as {"faults": [{"kind": "reset", "every": 7}]} (docs/howto/emulated-engine.md)'
)
"""What ``--script`` takes."""


class OverMemory(StrEnum):
    """What happens to a request whose tokens do not fit beside those in flight."""

    QUEUE = "queue"
    RESTART = "restart"
    EXIT = "exit"


@dataclass(frozen=True, slots=True)
class Settings:
    """A warm serial card without limits, by default.

    t0_ms, t1_ms: the cost of a batch; by default 4 and 0.35 on a serial card, 20 and 0 on a contended one. sigma,
    kappa: of a contended card. max_batch: rows of one request; max_running: requests or sequences at a time (not on a
    serial card's batches, where it is 1); 0 for any number. prefill_ms: per prompt token. load_s: from start to ready.
    first_request_s: what the first request after a start takes longer; with warm_up the engine pays it itself before it
    is ready. tokenize_cpu_ms: CPU time that each row, or prompt, burns before it comes to the card. kv_tokens: tokens
    that fit at a time, 0 for no limit; tokens_per_row: what a row of a batch takes of them. seed: of jitter.
    test_doors: take faults and tell what was executed over HTTP.
    """

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "emulated"
    device: DeviceKind = DeviceKind.SERIAL
    t0_ms: float | None = None
    t1_ms: float | None = None
    sigma: float = CONTENTION.sigma
    kappa: float = CONTENTION.kappa
    max_batch: int = 0
    max_running: int = 0
    prefill_ms: float = 0.0
    tokenize_cpu_ms: float = 0.0
    load_s: float = 0.0
    first_request_s: float = 0.0
    warm_up: bool = False
    kv_tokens: int = 0
    tokens_per_row: int = 0
    over_memory: OverMemory = OverMemory.QUEUE
    jitter_cv: float = 0.0
    stall_share: float = 0.0
    stall_ms: float = 0.0
    seed: int = 0
    test_doors: bool = False

    def __post_init__(self) -> None:
        """Raises UserError that tells all that is wrong."""
        wrong = _faults_of(self)
        if wrong:
            raise UserError("; ".join(wrong))

    @property
    def cost(self) -> Cost:
        """Of the device that was chosen."""
        usual = SERIAL_COST if self.device == DeviceKind.SERIAL else CONTENDED_COST
        t0_s = usual.t0_s if self.t0_ms is None else self.t0_ms / 1e3
        return Cost(t0_s, usual.t1_s if self.t1_ms is None else self.t1_ms / 1e3)

    @property
    def contention(self) -> Contention:
        """Of a contended card, before any fault."""
        return Contention(self.sigma, self.kappa)

    @property
    def jitter(self) -> Jitter:
        """Noise on every batch."""
        return Jitter(self.jitter_cv, self.stall_share, self.stall_ms / 1e3)


def read_script_file(path: Path) -> Script:
    """The script of a file. Raises InputError that names file and key, and says what to write."""
    try:
        return script_of(read_text(path, SCRIPT))
    except MisfitError as exc:
        fault = str(exc) if exc.key else f"{exc}; give {SCRIPT}"
        raise InputError(str(path), fault, field=exc.key or None) from exc


def _faults_of(settings: Settings) -> list[str]:
    wrong = [
        message for each in fields(settings) if (message := _number_fault(each.name, getattr(settings, each.name)))
    ]
    if not MODEL_NAME.fullmatch(settings.model):
        wrong.append(f"model: {settings.model!r} is no name; use letters, digits, dots, dashes and underscores")
    if settings.test_doors and not is_loopback(settings.host):
        wrong.append(
            f"host: {settings.host!r} is reached from other machines, and whoever reaches it may break this engine;"
            " take 127.0.0.1 or leave the faults out"
        )
    return wrong


def _number_fault(name: str, value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "seed":
        return None
    most = 1.0 if name in _SHARES else 65535 if name in _PORTS else 1e9
    if not 0 <= value <= most:  # also refuses NaN
        return f"{name.replace('_', '-')}: {value} is not from 0 to {most:g}"
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
