"""What all families read alike: the longest context, the number format, and how the weights were quantized."""

from __future__ import annotations

from collections.abc import Sequence

from cardwise.core.capacity.families.fields import Fields, seen
from cardwise.core.capacity.shape import Kind, Layer, ModelShape, Part, Tower

_STRETCHED = frozenset({"linear", "dynamic", "yarn"})
"""Kinds of rope scaling whose factor is not in ``max_position_embeddings`` yet. ``yarn`` counts from the original."""
_TOLD = frozenset({"default", "llama3", "longrope", "su", "mrope"})
"""Kinds that say in ``max_position_embeddings`` how far they reach."""
GPTQ_BITS = 4
SOURCE = "vllm/config/model.py, _get_and_verify_max_len (v0.33)"
"""How an engine derives the longest context from the two fields."""


def make(
    fields: Fields,
    kind: Kind,
    hidden: int,
    layers: Sequence[Layer],
    parts: Sequence[Part],
    *,
    vocab: int,
    context: int | None,
    tower: Tower | None = None,
    top: Fields | None = None,
) -> ModelShape:
    """The shape, with what every configuration says. top: the outer configuration, where this one is a part of it."""
    outer = top or fields
    return ModelShape(
        architecture=architecture_of(outer),
        kind=kind,
        hidden=hidden,
        vocab=vocab,
        context=context,
        layers=tuple(layers),
        parts=tuple(part for part in parts if part.count),
        tower=tower,
        dtype=dtype_of(outer) or dtype_of(fields),
        quantization=quantization_of(outer),
    )


def architecture_of(fields: Fields) -> str:
    """The class of the model. Raises ConfigError if it is not named, or if two are."""
    named = fields.names("architectures") or ()
    if len(named) != 1:
        raise fields.error(
            "architectures", f"is {seen(list(named))}; write the one class of the model, as transformers does"
        )
    return named[0]


def dtype_of(fields: Fields) -> str:
    """The number format of the weights, as its older or its newer field says."""
    return fields.text("torch_dtype") or fields.text("dtype")


def context_of(fields: Fields, *names: str, less: int = 0, counted: bool = False) -> int:
    """The longest context. less: positions that no token takes. counted: a factor is in it already.

    Source: see ``SOURCE``. Raises ConfigError for a kind of rope scaling that no rule here knows.
    """
    most = fields.whole(*(names or ("max_position_embeddings",))) - less
    scaling = fields.within("rope_scaling") or fields.within("rope_parameters")  # the second since transformers 5
    if scaling is None or counted:
        return most
    kind = scaling.text("rope_type") or scaling.text("type") or "default"
    if kind in _TOLD:
        return most
    if kind not in _STRETCHED:
        raise scaling.error("rope_type", f"is {kind!r}, which no rule here knows")
    base = scaling.whole("original_max_position_embeddings", otherwise=most) if kind == "yarn" else most
    reached = max(most if kind == "yarn" else 0, int(base * scaling.number("factor", 1.0)))
    if reached < 1:
        raise scaling.error("factor", f"leaves nothing of {most:,} tokens; write 1 or more")
    return reached


def check_heads(fields: Fields, hidden: int, heads: int) -> None:
    """Raises ConfigError if heads do not divide the hidden size, which they do where their size is not written."""
    if hidden % heads:
        raise fields.error("num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}")


def quantization_of(fields: Fields) -> str | None:
    """How the weights of the checkpoint were quantized. Raises ConfigError for a method whose bytes are not known."""
    stated = fields.within("quantization_config")
    if stated is None:
        return None
    method = stated.text("quant_method")
    if method in {"fp8", "mxfp4"}:
        return method
    if method in {"awq", "gptq"}:
        bits = stated.whole("bits", "w_bit", otherwise=GPTQ_BITS)
        if bits == GPTQ_BITS:
            return method
        raise stated.error("bits", f"is {bits}; only 4 is known: give the folder with its safetensors files instead")
    raise stated.error(
        "quant_method", f"is {method!r}, whose size is not known: give the folder with its safetensors files instead"
    )


def windows(fields: Fields, count: int, window: int | None, *, sliding: Sequence[int]) -> list[int | None]:
    """The window of each layer: by ``layer_types`` where they are written, else of the layers ``sliding``.

    Raises ConfigError for a kind of layer that no rule here knows, and for a window that is not told.
    """
    types = fields.names("layer_types")
    if types is None:
        return [window if i in set(sliding) else None for i in range(count)]
    if len(types) != count:
        raise fields.error("layer_types", f"has {len(types)} entries for {count} layers")
    for i, each in enumerate(types):
        if each not in {"full_attention", "sliding_attention"}:
            raise fields.error(f"layer_types[{i}]", f"is {each!r}, which no rule here knows")
    if "sliding_attention" in types and window is None:
        raise fields.error("sliding_window", "is missing, and layers of layer_types need it; write a whole number")
    return [window if each == "sliding_attention" else None for each in types]
