"""What is asked, and what alone may be answered: every row has its own identity, its own sum and its own ends."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from dataclasses import dataclass

INFER, CHAT = "/v2/models/emulated/infer", "/v1/completions"
WIDE = 30_000
"""Numbers in each of the four rows of a body of a mebibyte."""
TOKENS = 6
_FIRST = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. ids: under which the engine tells that it was executed."""

    service: str
    path: str
    body: bytes
    headers: dict[str, str]
    ids: tuple[str, ...]
    rows: tuple[tuple[float, float, float], ...] = ()
    """Sum and ends of each."""
    text: str = ""

    def is_right(self, body: bytes) -> bool:
        """Whether this is its answer, and nobody else's."""
        try:
            return self._is_text(body) if self.text else self._is_rows(json.loads(body))
        except (ValueError, KeyError, TypeError, IndexError):
            return False

    def _is_rows(self, told: dict[str, object]) -> bool:
        outputs = told["outputs"]
        assert isinstance(outputs, list)  # noqa: S101
        data = {each["name"]: each["data"] for each in outputs}
        return (
            data["row_id"] == [int(each) for each in self.ids]
            and data["sum"] == [total for total, *_ in self.rows]
            and data["ends"] == [end for _, *ends in self.rows for end in ends]
        )

    def _is_text(self, body: bytes) -> bool:
        events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
        texts = [json.loads(each)["choices"][0]["text"] for each in events[:-1]]
        return events[-1] == "[DONE]" and "".join(texts) == self.text


def rows_of(service: str, rows: int, width: int = 2, headers: dict[str, str] | None = None) -> Asked:
    """An inference request of the protocol."""
    ids = [next(_FIRST) for _ in range(rows)]
    data = [[float(each % 99_991), *(float(each % 97 + k) for k in range(1, width))] for each in ids]
    x = {"name": "x", "shape": [rows, width], "datatype": "FP32", "data": data}
    named = {"name": "row_id", "shape": [rows], "datatype": "INT64", "data": ids}
    expected = tuple((sum(row), row[0], row[-1]) for row in data)
    body = json.dumps({"inputs": [x, named]}).encode()
    return Asked(service, INFER, body, headers or {}, tuple(map(str, ids)), expected)


def text_of() -> Asked:
    """A streamed completion."""
    name = f"c{next(_FIRST)}"
    body = json.dumps({"model": "emulated", "prompt": name, "max_tokens": TOKENS, "stream": True}).encode()
    key = f"{zlib.crc32(name.encode()):08x}"
    text = " ".join(f"{key}.{number}" for number in range(TOKENS))
    return Asked("chat", CHAT, body, {"X-Request-Id": name}, (name,), text=text)


def any_of(service: str, dice: random.Random) -> Asked:
    """One of the usual load. Some tell a deadline."""
    if service == "chat":
        return text_of()
    headers = {"X-Cardwise-Deadline-Ms": "5000"} if dice.random() < 0.3 else None
    return rows_of(service, dice.randint(1, 4), headers=headers)


def wrong_bodies() -> dict[str, bytes]:
    """Bodies that must be refused with 400, by what is wrong with them."""

    def tensor(**more: object) -> bytes:
        usual = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2, 3, 4]}
        return json.dumps({"inputs": [{**usual, **more}]}).encode()

    return {
        "nothing": b"",
        "cut off": tensor()[:-3],
        "not UTF-8": b"\xff\xfe" + tensor(),
        "nested too deep": b'{"inputs": [' * 10_000,
        "a list": b"[]",
        "no inputs": b'{"inputs": []}',
        "more after it": tensor() + b"{}",
        "one value too few": tensor(data=[1, 2, 3]),
        "one value too many": tensor(data=[1, 2, 3, 4, 5]),
        "another nesting": tensor(data=[[1, 2, 3], [4]]),
        "negative shape": tensor(shape=[-2, -2]),
        "no rows": tensor(shape=[0, 2], data=[]),
        "shape of text": tensor(shape=["2", 2]),
        "no number": tensor(data=[1, 2, 3, "x"]),
        "not a number": tensor(data=[1, 2, 3, float("nan")]),
        "found by the replica only": tensor(datatype="INT64", data=[1, 2, 3, 10**30]),
    }


def wrong_heads() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Heads that must be refused, with what is told; 0: closed without an answer."""
    line = b"POST /v2/models/emulated/infer HTTP/1.1\r\nHost: once\r\n"
    return {
        "one header of 1 MiB": (line + b"X: " + b"y" * 2**20, (431,)),
        "10,000 headers": (line + b"X-A: 1\r\n" * 10_000 + b"\r\n", (431,)),
        "target of 1 MiB": (b"GET /" + b"y" * 2**20, (431,)),
        "trailer of 1 MiB": (line + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 2**20, (431,)),
        "two lengths": (line + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", (400,)),
        "length and chunks": (line + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", (400,)),
        "17 MiB announced": (line + b"Content-Length: 17825792\r\n\r\n", (413,)),
        "half a head, then silence": (line + b"X-Half", (408,)),
        "half a body, then silence": (line + b"Content-Length: 100\r\n\r\nhalf", (408,)),
        "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400,)),
        "noise": (random.Random(1).randbytes(4096), (400,)),  # noqa: S311
    }
