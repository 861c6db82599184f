"""What HTTP/1.1 looks like on the wire: heads written, headers kept or dropped.

Header names are bytes in lower case, as both protocols of this room hand them out. Refuses to parse: llhttp does that.
"""

from __future__ import annotations

from collections.abc import Iterable
from http import HTTPStatus

Header = tuple[bytes, bytes]
Headers = list[Header]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_BODILESS = frozenset({204, 304})
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""RFC 9110, 7.6.1, and what older clients send in its place."""


def has_body(method: str, status: int) -> bool:
    """Whether an answer may have a body at all."""
    return method != "HEAD" and status >= 200 and status not in _BODILESS


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that a proxy passes on: not those of the connection, nor what ``Connection`` names as such."""
    kept = [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
    named = _named_in_connection(headers)
    return [(name, value) for name, value in kept if name not in named] if named else kept


def _named_in_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    named = {option.strip() for name, value in headers if name == b"connection" for option in value.lower().split(b",")}
    return frozenset(named - {b"close", b"keep-alive", b""})


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first value of a header."""
    for key, value in headers:
        if key == name:
            return value
    return None


def request_head(method: str, target: str, headers: Headers) -> bytes:
    """The head of a request, complete."""
    lines = [f"{method} {target} HTTP/1.1\r\n".encode("latin-1")]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join((*lines, b"\r\n"))


def response_head(status: int, headers: Headers) -> bytes:
    """The head of an answer, complete."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (status, REASONS.get(status, b"-"))]
    lines += [b"%b: %b\r\n" % header for header in headers]
    return b"".join((*lines, b"\r\n"))


def chunk(part: bytes) -> bytes:
    """A part of a chunked body. Never of nothing: that would end it."""
    return b"%x\r\n%b\r\n" % (len(part), part)


LAST_CHUNK = b"0\r\n\r\n"
