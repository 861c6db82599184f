"""A model's ``config.json`` read field by field: every value checked, and what is about attention never overlooked.

A field that a family did not read, and whose name speaks of attention, experts or recurrence, is refused by name: it
may change what the model keeps in memory, and a guess there is worse than none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_TELLING = re.compile(
    r"attn|attention|head|window|layer_types|layers_block|pattern|_rank|mamba|ssm|delta|conv|index_|kv_|_kv"
    r"|expert|moe|cross|sparse|alibi|chunk|parallel|shared|deepstack|recurrent|state_size"
)
_HARMLESS = frozenset(
    {
        "_attn_implementation",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attention_softmax_in_fp32",
        "attn_implementation",
        "attn_logit_softcapping",
        "attn_pdrop",
        "chunk_size_feed_forward",
        "deterministic_flash_attn",
        "head_type",
        "layernorm_compute_parallel",
        "norm_topk_prob",
        "num_experts_per_tok",
        "output_attentions",
        "output_router_logits",
        "query_pre_attn_scalar",
        "scale_attention_softmax_in_fp32",
        "scale_attn_weights",
        "slow_but_exact",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "use_parallel_residual",
        "vision_use_head",
    }
)
"""Speak of attention and change neither a weight nor what is kept."""


MOST, MOST_LAYERS, MOST_FACTOR = 10**9, 10_000, 10**6
"""Of any number, of layers, and of a factor: more is a slip of the pen, and would be counted for hours."""

LONGEST_SEEN = 60


class ConfigError(ValueError):
    """A configuration that cannot be used. ``field``: the field at fault, dotted if it is in a part."""

    def __init__(self, field: str, message: str) -> None:
        """Keep the field beside the message, so that a reader of files can say where."""
        self.field = field
        self.reason = message
        super().__init__(f"{field}: {message}")


def seen(value: object) -> str:
    """A wrong value as a message shows it: escaped, and cut if long."""
    text = repr(value)
    return text if len(text) <= LONGEST_SEEN else f"{text[:LONGEST_SEEN]}…"


class Fields:
    """A mapping of a configuration. Remembers what was read; :meth:`finish` refuses what should have been."""

    def __init__(self, values: Mapping[str, object], where: str = "") -> None:
        """``where`` stands before names in messages, such as ``text_config.``."""
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def error(self, name: str, message: str) -> ConfigError:
        """A refusal of this field."""
        return ConfigError(f"{self._where}{name}", message)

    def has(self, name: str) -> bool:
        """Whether it is there and not null."""
        return self._get(name) is not None

    def whole(self, *names: str, least: int = 1, otherwise: int | None = None) -> int:
        """A whole number under one of these names. Raises ConfigError if there is none and no other value."""
        for name in names:
            value = self._get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(name, f"is {seen(value)}; write a whole number of {least} or more")
            most = MOST_LAYERS if "layer" in name or name == "depth" else MOST
            if value > most:
                raise self.error(name, f"is {value:,}; write {most:,} or less")
            return value
        if otherwise is None:
            raise self.error(names[0], "is missing; write a whole number")
        return otherwise

    def whole_or_none(self, name: str) -> int | None:
        """A whole number, or None where the field is null or not there."""
        return self.whole(name) if self.has(name) else None

    def stated(self, name: str) -> None:
        """Raises ConfigError if the field is not there at all: null is a word on it, absence is none."""
        if name not in self._values:
            raise self.error(name, "is missing; write a whole number, or null for none")

    def flag(self, name: str, *, otherwise: bool) -> bool:
        """True or false."""
        value = self._get(name)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.error(name, f"is {seen(value)}; write true or false")
        return value

    def text(self, name: str, otherwise: str = "") -> str:
        """A text."""
        value = self._get(name)
        if value is None:
            return otherwise
        if not isinstance(value, str):
            raise self.error(name, f"is {seen(value)}; write a text")
        return value

    def number(self, name: str, otherwise: float) -> float:
        """A number above 0."""
        value = self._get(name)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_FACTOR:
            raise self.error(name, f"is {seen(value)}; write a number above 0, at most {MOST_FACTOR:,}")
        return float(value)

    def names(self, name: str) -> tuple[str, ...] | None:
        """A list of texts, or None."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.error(name, f"is {seen(value)}; write a list of texts")
        return tuple(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers; empty where it is not there."""
        value = self._get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(each, int) and not isinstance(each, bool) for each in value
        ):
            raise self.error(name, f"is {seen(value)}; write a list of whole numbers")
        return tuple(value)

    def size(self, name: str) -> int:
        """How many entries a table or a list has; 0 where it is not there."""
        value = self._get(name)
        return len(value) if isinstance(value, list | dict) else 0

    def within(self, name: str) -> Fields | None:
        """A part of the configuration, or None."""
        value = self._get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, f"is {seen(value)}; write a table of fields")
        return Fields(value, f"{self._where}{name}.")

    def must(self, name: str) -> Fields:
        """A part of the configuration. Raises ConfigError if it is not there."""
        part = self.within(name)
        if part is None:
            raise self.error(name, "is missing; write a table of fields")
        return part

    def fill(self, defaults: Mapping[str, object]) -> Fields:
        """With the values that the format itself gives to what a part leaves out."""
        return Fields({**defaults, **self._values}, self._where)

    def finish(self, *ignored: str) -> None:
        """Raises ConfigError for a field about attention that no rule has read, but for those ``ignored``."""
        for name, value in self._values.items():
            if name in self._read or name in _HARMLESS or name in ignored or value in (None, False, 0, [], {}):
                continue
            if _TELLING.search(name):
                raise self.error(
                    name, f"is {seen(value)}, which no rule here knows: it may change what is kept in memory"
                )

    def _get(self, name: str) -> object:
        self._read.add(name)
        return self._values.get(name)
