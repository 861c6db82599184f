"""OpenAI's completions: requests read, answers and stream events written.

The emulated text is made of the prompt's checksum and the token's number (``1a2b3c4d.0 1a2b3c4d.1 ...``), so that a
stream that got another's tokens, lost one or has one twice is seen. Every answer has as many tokens as were allowed and
ends with ``length``: there is nothing it could want to stop at.

Refuses several prompts or answers at once (``n``, a list of texts). Sampling options are read over: they cost no time.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from cardwise.errors import UserError
from cardwise.files import decode_json

USUAL_TOKENS = 16
"""Of OpenAI's completions, where none are asked for."""
MOST_TOKENS = 1_000_000
DONE = b"data: [DONE]\n\n"
_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]


class StreamOptions(msgspec.Struct):
    """What a stream shall tell at its end."""

    include_usage: bool = False


class _Common(msgspec.Struct):
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: _Tokens | None = None
    n: int | None = None


class Completion(_Common, kw_only=True):
    """The body of ``/v1/completions``."""

    prompt: str | list[Any]


class Message(msgspec.Struct):
    """One of a chat: text, or parts of which the texts count."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class Chat(_Common, kw_only=True):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Tokens | None = None


_KindT = TypeVar("_KindT", bound=_Common)


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked. prompt_tokens: words, or the tokens given; key: the prompt's checksum."""

    model: str
    is_chat: bool
    streams: bool
    tells_usage: bool
    prompt_tokens: int
    wanted: int
    key: str

    def token(self, number: int) -> str:
        """The text of a token."""
        return f"{self.key}.{number}" if number == 0 else f" {self.key}.{number}"


def read_completion(body: bytes) -> Ask:
    """Raises UserError that says what is wrong with the request."""
    completion = _read(body, Completion)
    prompt = completion.prompt
    if isinstance(prompt, str):
        text, tokens = prompt, len(prompt.split())
    elif all(type(each) is int for each in prompt):
        text, tokens = str(prompt), len(prompt)
    else:
        raise UserError("prompt: one text, or the tokens of one; send several as several requests")
    return _asked(completion, text, tokens, completion.max_tokens or USUAL_TOKENS)


def read_chat(body: bytes) -> Ask:
    """Raises UserError that says what is wrong with the request."""
    chat = _read(body, Chat)
    text = "\n".join(f"{each.role}: {_text(each)}" for each in chat.messages)
    wanted = chat.max_completion_tokens or chat.max_tokens or USUAL_TOKENS
    return _asked(chat, text, len(text.split()), wanted)


def answer(ask: Ask, number: int, *, choices: bool = True) -> bytes:
    """The whole answer at once; without choices it is one of the wrong shape."""
    text = "".join(map(ask.token, range(ask.wanted)))
    said = {"message": {"role": "assistant", "content": text}} if ask.is_chat else {"text": text, "logprobs": None}
    choice = {"index": 0, **said, "finish_reason": "length"}
    head = _head(ask, number, "chat.completion" if ask.is_chat else "text_completion")
    return msgspec.json.encode({**head, "choices": [choice] if choices else [], "usage": _usage(ask)})


def event(ask: Ask, number: int, token: int) -> bytes:
    """The event of one token; the first of a chat names the role, the last says why it is the last."""
    text = ask.token(token)
    said: dict[str, object] = {"text": text, "logprobs": None}
    if ask.is_chat:
        said = {"delta": {"role": "assistant", "content": text} if token == 0 else {"content": text}}
    choice = {"index": 0, **said, "finish_reason": "length" if token == ask.wanted - 1 else None}
    return _event({**_chunk_head(ask, number), "choices": [choice]})


def usage_event(ask: Ask, number: int) -> bytes:
    """The event after the last token, where usage was asked for; it has no choices."""
    return _event({**_chunk_head(ask, number), "choices": [], "usage": _usage(ask)})


def error(status: int, message: str) -> bytes:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": status}})


def models(model: str) -> bytes:
    """The answer of ``/v1/models``."""
    return msgspec.json.encode(
        {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "cardwise"}]}
    )


def _read(body: bytes, kind: type[_KindT]) -> _KindT:
    try:
        return decode_json(body, kind)
    except msgspec.DecodeError as exc:
        raise UserError(f"not a request: {exc}") from exc


def _asked(common: _Common, text: str, tokens: int, wanted: int) -> Ask:
    if common.n not in {None, 1}:
        raise UserError("n: one answer at a time; send several requests")
    tells_usage = common.stream_options is not None and common.stream_options.include_usage
    key = f"{zlib.crc32(text.encode()):08x}"
    return Ask(common.model, isinstance(common, Chat), common.stream, tells_usage, max(1, tokens), wanted, key)


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return " ".join(str(part.get("text", "")) for part in message.content)
    return message.content or ""


def _head(ask: Ask, number: int, kind: str) -> dict[str, object]:
    name = "chatcmpl" if ask.is_chat else "cmpl"
    return {"id": f"{name}-{number}", "object": kind, "created": 0, "model": ask.model}


def _chunk_head(ask: Ask, number: int) -> dict[str, object]:
    return _head(ask, number, "chat.completion.chunk" if ask.is_chat else "text_completion")


def _usage(ask: Ask) -> dict[str, int]:
    return {
        "prompt_tokens": ask.prompt_tokens,
        "completion_tokens": ask.wanted,
        "total_tokens": ask.prompt_tokens + ask.wanted,
    }


def _event(content: object) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"
