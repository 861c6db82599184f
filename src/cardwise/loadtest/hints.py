"""What stands at a port that does not answer as HTTP/1.1: tried out, so that the message can say what to type.

Only asked once the first request has failed. Refuses to guess: what cannot be told is said so.
"""

from __future__ import annotations

import socket
import ssl
import struct

from cardwise.loadtest.plan import Endpoint

PATIENCE_S = 2.0
"""For each thing tried."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _GOAWAY = 4, 7
_EMPTY_SETTINGS = b"\0\0\0" + bytes([_SETTINGS]) + b"\0\0\0\0\0"
"""Source: RFC 9113, 3.4, 4.1 and 6.5."""


def hint_of(endpoint: Endpoint) -> str:
    """What it is, and what to do: one clause."""
    if not _takes_connections(endpoint):
        return "it takes no connections: check host and port, and that the service runs"
    if _speaks_tls(endpoint):
        if endpoint.scheme == "http":
            return "it speaks TLS: write https://"
        return "it speaks TLS; check its certificate (or give --insecure), and that it speaks HTTP/1.1"
    if endpoint.scheme == "https":
        return "it speaks no TLS: write http://, or check the port"
    return _hint_of(_heard(endpoint))


def _hint_of(first: bytes) -> str:
    """By what it said first to one who speaks HTTP/2: a server of HTTP/1.1 refuses that in its own words."""
    if not first:
        return "it takes connections and says nothing: does it speak HTTP/1.1, and has it started?"
    if first.startswith(b"HTTP/1."):
        return "it speaks HTTP/1.1, but does not answer this request: check path and body, or see its log"
    if is_http2(first):
        return "it speaks HTTP/2 only, as gRPC does: give its port for HTTP/1.1"
    return "it does not speak HTTP/1.1: check the port"


def is_http2(first: bytes) -> bool:
    """Whether a server's first bytes are a frame that HTTP/2 begins, or ends, with."""
    if len(first) < 9:
        return False
    size = int.from_bytes(first[:3], "big")
    kind, _, stream = struct.unpack_from(">BBI", first, 3)
    return kind in {_SETTINGS, _GOAWAY} and stream == 0 and size < 2**14


def _takes_connections(endpoint: Endpoint) -> bool:
    try:
        _connected(endpoint).close()
    except OSError:
        return False
    return True


def _speaks_tls(endpoint: Endpoint) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: it is only asked what it speaks
    try:
        with _connected(endpoint) as plain, context.wrap_socket(plain, server_hostname=endpoint.host):
            return True
    except ssl.SSLError as error:
        return "ALERT" in str(error.reason)  # it refused us in TLS
    except OSError:
        return False


def _heard(endpoint: Endpoint) -> bytes:
    """The first bytes that it says to one who speaks HTTP/2."""
    try:
        with _connected(endpoint) as plain:
            plain.sendall(_PREFACE + _EMPTY_SETTINGS)
            return plain.recv(64)
    except OSError:
        return b""


def _connected(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection((endpoint.host, endpoint.port), PATIENCE_S)
