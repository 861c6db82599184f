"""Server-sent events of an OpenAI stream: when the tokens came, how many, and whether the stream ended as it should.

A token is an event with content. Engines may put several tokens in one event; where the last event tells the usage,
the number of tokens is taken from there, and the times between tokens stay those between events.

Refuses to believe a stream that ends without ``[DONE]``: it was cut.
"""

from __future__ import annotations

import msgspec

MOST_LINE_BYTES = 1 << 20


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    text: str | None = None


class _Usage(msgspec.Struct, frozen=True):
    completion_tokens: int = 0


class _Event(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


_decoder = msgspec.json.Decoder(_Event)


class TokenTimes:
    """Of one stream. Times are of the monotonic clock, in seconds."""

    __slots__ = ("_rest", "at_s", "fault", "is_done", "usage")

    def __init__(self) -> None:
        self._rest = b""
        self.at_s: list[float] = []
        self.usage: int | None = None
        self.is_done = False
        self.fault = ""

    @property
    def tokens(self) -> int:
        """How many, as the engine says, else as events with content came."""
        return len(self.at_s) if self.usage is None else self.usage

    def feed(self, data: bytes, now_s: float) -> None:
        """What has arrived."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MOST_LINE_BYTES:
            self.fault, self._rest = "malformed", b""
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now_s)

    def _event(self, data: bytes, now_s: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _decoder.decode(data)
        except msgspec.DecodeError:
            self.fault = "malformed"
            return
        if event.error is not None:
            self.fault = "stream-error"
        if event.usage is not None:
            self.usage = event.usage.completion_tokens
        if any(each.delta.content or each.delta.reasoning_content or each.text for each in event.choices):
            self.at_s.append(now_s)
