"""Objects of the API server as JSON, however deep users nest what nobody here reads.

The API server takes what is 10,000 levels deep, in managed fields for instance, and JSON decoders stop at some 1,000:
one such pod would hide all others of its list. Refuses to guess: what lies too deep is left out, never cut in half.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from cardwise.files import decode_json

DEEPEST = 64
"""Levels that are kept: what is read of a list of pods lies within 16."""
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_DecodedT = TypeVar("_DecodedT")


def decode_object(content: bytes | msgspec.Raw, kind: type[_DecodedT]) -> _DecodedT:
    """A value of this type from the API server's JSON. Raises msgspec.DecodeError if it is none."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        return decode_json(shallow(bytes(content)), kind)


def shallow(content: bytes) -> bytes:
    """The same JSON with null in place of lists and objects that lie too deep."""
    parts, depth, kept = list[bytes](), 0, 0
    for token in _TOKENS.finditer(content):
        if token[0] in {b"[", b"{"}:
            depth += 1
            if depth == DEEPEST + 1:
                parts += content[kept : token.start()], b"null"
        elif token[0] in {b"]", b"}"}:
            if depth == DEEPEST + 1:
                kept = token.end()
            depth -= 1
    return b"".join([*parts, content[kept:]])
