"""What to send, and how hard: a user's words made into bytes and numbers, or refused in one sentence before the test.

Requests are rendered once, here; the generator only writes them. Several differ in content, in turn, because a service
that caches (an engine's prefix cache, a proxy) answers one and the same request faster than its users will ever see.

Refuses what would measure something else: credentials in a URL (they would be in the results), redirects, a body for
GET, a sweep of the batch window that no header or URL carries.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

import msgspec

from cardwise.adapters.http1.wire import request_head
from cardwise.errors import InputError, UserError
from cardwise.files import seen

VARIANTS = 16
"""Requests of different content, sent in turn."""
WINDOW = "{window}"
"""Where the batch window goes in a URL."""
FACTS = {
    "cards": "cards or slices of cards that serve it",
    "memory-mib": "GPU memory it holds",
    "compute-pct": "percent of cards' compute it holds",
    "cost-per-hour": "what that costs, in any currency",
    "restarts": "container restarts during the test",
    "failed-scheduling": "FailedScheduling events during the test",
    "alerts": "alerts that fired during the test",
}
"""Keys of ``--facts``: what a load test cannot see from outside. Source: SPEC H3."""
MOST_BODY_BYTES = 64 << 20
_DATATYPES = {"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"}
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")


class Kind(StrEnum):
    """What is spoken."""

    OIP = "oip"
    OPENAI = "openai"
    PLAIN = "plain"


class Arrivals(StrEnum):
    """When requests are due in an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Load:
    """One step's load: a rate (open loop) or a number of callers (closed loop), and a batch window if that is swept."""

    rate_per_s: float | None = None
    concurrency: int | None = None
    batch_window_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input that we make up."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, apart from their path."""

    scheme: str
    host: str
    port: int
    verify: bool = True

    @property
    def authority(self) -> str:
        """For the ``Host`` header: without the port where it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == {"http": 80, "https": 443}[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Target:
    """A service, and the requests for it."""

    endpoint: Endpoint
    path: str
    kind: Kind
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    bodies: tuple[bytes, ...] = (b"",)
    window_header: str | None = None

    @property
    def url(self) -> str:
        """As results show it."""
        return f"{self.endpoint.scheme}://{self.endpoint.authority}{self.path}"

    def requests(self, window_ms: float | None = None) -> tuple[bytes, ...]:
        """Whole HTTP/1.1 requests, for one batch window."""
        path = self.path.replace(WINDOW, "" if window_ms is None else f"{window_ms:g}")
        told = [("Host", self.endpoint.authority), *self.request_headers(window_ms)]
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told]
        if self.method in {"GET", "HEAD"}:
            return (request_head(self.method, path, headers),)
        return tuple(
            request_head(self.method, path, [*headers, (b"Content-Length", b"%d" % len(body))]) + body
            for body in self.bodies
        )

    def request_headers(self, window_ms: float | None = None) -> list[tuple[str, str]]:
        """All but those that come from the URL and the body."""
        swept = self.window_header if window_ms is not None else None
        return [*self.headers, *([(swept, f"{window_ms:g}")] if swept is not None else [])]


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard, how long, and what is good enough."""

    arrivals: Arrivals = Arrivals.POISSON
    seconds: float = 10.0
    warm_up_s: float = 2.0
    timeout_s: float = 10.0
    most_unfinished: int = 2000
    target_p99_ms: float = 200.0
    limit_s: float = 600.0
    seed: int = 1
    steps: tuple[Load, ...] = ()
    """Empty: find the knee."""
    search: Search | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """Where to look for the knee."""

    axis: str
    start: float
    most: float


def split_url(text: str) -> SplitResult:
    """Raises UserError if it is no http or https URL of a host."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UserError(f"{seen(text)} is no URL ({error}); write http://HOST:PORT/PATH") from error
    if url.scheme not in {"http", "https"} or not url.hostname or port == 0:
        raise UserError(f"{seen(text)} is no http:// or https:// URL; write http://HOST:PORT/PATH")
    if url.username is not None or url.password is not None:
        raise UserError("the URL holds a user or a password, which results would show; give --header Authorization:...")
    if any(not 0x21 <= ord(sign) < 0x7F for sign in text):
        raise UserError(f"{seen(text)} holds blanks or letters that a URL must escape; write them as %20 and the like")
    return url


def endpoint_of(url: SplitResult, *, verify: bool = True) -> Endpoint:
    """Host and port of a URL that was checked."""
    return Endpoint(url.scheme, url.hostname or "", url.port or {"http": 80, "https": 443}[url.scheme], verify)


def path_of(url: SplitResult, kind: Kind, model: str | None = None) -> str:
    """The request's target: the URL's path, or the protocol's own below it."""
    query = f"?{url.query}" if url.query else ""
    base = url.path
    if kind is Kind.OIP and model is not None:
        own = f"/v2/models/{quote(model, safe='')}/infer"
        base = base if base.endswith("/infer") else base.rstrip("/") + own
    elif kind is Kind.OPENAI:
        own = "/chat/completions" if base.rstrip("/").endswith("/v1") else "/v1/chat/completions"
        base = base if base.endswith("/chat/completions") else base.rstrip("/") + own
    return (base or "/") + query


def parse_header(text: str) -> tuple[str, str]:
    """Of ``NAME: VALUE``."""
    name, colon, value = text.partition(":")
    token = name and all(sign.isascii() and (sign.isalnum() or sign in "!#$%&'*+-.^_`|~") for sign in name)
    if not (token and colon) or any(sign in "\r\n\0" or ord(sign) > 0xFF for sign in value):
        raise UserError(f"--header {seen(text)} is not NAME:VALUE; write for example x-tenant:blue")
    if name.lower() in {"host", "content-length", "transfer-encoding", "connection", "expect"}:
        raise UserError(f"--header {name}: the generator writes that one itself; leave it out")
    return name, value.strip()


def parse_tensor(text: str) -> Tensor:
    """Of ``NAME:DATATYPE:DIMS``, such as ``input:FP32:1,16``."""
    name, _, rest = text.partition(":")
    datatype, _, dims = rest.partition(":")
    try:
        shape = tuple(int(each) for each in dims.split(","))
    except ValueError:
        shape = ()
    if not name or datatype not in _DATATYPES or not shape or any(each < 1 for each in shape):
        known = ", ".join(sorted(_DATATYPES))
        raise UserError(f"--tensor {seen(text)} is not NAME:DATATYPE:DIMS; write for example x:FP32:1,16 ({known})")
    if math.prod(shape) > MOST_BODY_BYTES // 8:
        raise UserError(f"--tensor {seen(text)} has more than {MOST_BODY_BYTES // 8:,} elements; give it fewer")
    return Tensor(name, datatype, shape)


def parse_facts(text: str) -> dict[str, float]:
    """Of ``cards=2,cost-per-hour=3.1``."""
    facts = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        number = _number(value)
        if key.strip() not in FACTS or number is None or number < 0:
            raise UserError(f"--facts {seen(part)} is not KEY=NUMBER with a KEY of {', '.join(FACTS)}")
        facts[key.strip()] = number
    return facts


SWEEPS = ("concurrency", "rate", "batch-window")


def parse_sweep(text: str) -> tuple[str, list[float]]:
    """Of ``concurrency=1,2,4,8``: the axis and its values, as they come."""
    axis, _, values = text.partition("=")
    numbers = [_number(each) for each in values.split(",")]
    if axis not in SWEEPS or None in numbers:
        raise UserError(f"--sweep {seen(text)} is not AXIS=N,N,...; write {_EXAMPLES}")
    wanted = [number for number in numbers if number is not None]
    least = 0.0 if axis == "batch-window" else 1e-3
    if any(number < least or number > 1e6 for number in wanted):
        raise UserError(f"--sweep {seen(text)}: {axis} is from {least:g} to 1000000")
    if axis == "concurrency" and any(number != int(number) for number in wanted):
        raise UserError(f"--sweep {seen(text)}: callers come in whole numbers; write concurrency=1,2,4,8")
    if len(set(wanted)) != len(wanted):
        raise UserError(f"--sweep {seen(text)}: a value comes twice; write each once")
    return axis, wanted


_EXAMPLES = "concurrency=1,2,4,8 or rate=100,200,400 or batch-window=0,5,20"


def swept(axis: str, values: Sequence[float], base: Load) -> tuple[Load, ...]:
    """A step per value; a batch window is swept at the load of ``base``."""
    if axis == "concurrency":
        return tuple(replace(base, concurrency=int(value)) for value in values)
    if axis == "rate":
        return tuple(replace(base, rate_per_s=value) for value in values)
    return tuple(replace(base, batch_window_ms=value) for value in values)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_body(path: Path) -> bytes:
    """A file as it is. Raises InputError if it cannot be read, is no regular file or too large."""
    try:
        if not path.is_file():
            message = "is no file" if path.exists() else "no such file"
            raise InputError(str(path), f"{message}; give the file to send")
        if path.stat().st_size > MOST_BODY_BYTES:
            raise InputError(str(path), f"is larger than {MOST_BODY_BYTES >> 20} MiB; give a smaller body")
        return path.read_bytes()
    except OSError as error:
        raise InputError(str(path), f"cannot be read ({error.strerror}); give the file to send") from error


def oip_bodies(tensors: Sequence[Tensor], seed: int) -> tuple[bytes, ...]:
    """Requests of Open Inference Protocol v2 with random content."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    few = 1 if sum(tensor.size for tensor in tensors) > 1 << 20 else VARIANTS
    return tuple(msgspec.json.encode({"inputs": [_filled(tensor, draw) for tensor in tensors]}) for _ in range(few))


def _filled(tensor: Tensor, draw: random.Random) -> dict[str, object]:
    data: list[bool] | list[int] | list[float]
    if tensor.datatype == "BOOL":
        data = [draw.random() < 0.5 for _ in range(tensor.size)]
    elif tensor.datatype.startswith("FP"):
        data = [round(draw.random(), 4) for _ in range(tensor.size)]
    else:
        data = [draw.randrange(100) for _ in range(tensor.size)]
    return {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "data": data}


def openai_bodies(model: str, prompt_words: int, max_tokens: int, seed: int) -> tuple[bytes, ...]:
    """Streamed chat completions. Prompts differ from their first word on, so that no prefix is cached."""
    return tuple(
        msgspec.json.encode(
            {
                "model": model,
                "messages": [{"role": "user", "content": " ".join(words)}],
                "max_tokens": max_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for words in _prompts(prompt_words, seed)
    )


def _prompts(words: int, seed: int) -> Iterator[list[str]]:
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    for i in range(VARIANTS):
        yield [f"{i}:", *draw.choices(_WORDS, k=words)]


def media_type(path: Path | None) -> str:
    """Of a body, by its file's name."""
    return "application/json" if path is None or path.suffix == ".json" else "application/octet-stream"
