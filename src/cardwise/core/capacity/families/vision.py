"""Language models that also see: Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA 1.5 and Gemma 3.

Source: transformers 5.24, ``models/<model_type>/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from cardwise.core.capacity.families import common, decoders
from cardwise.core.capacity.families.blocks import GATED, PLAIN, norm
from cardwise.core.capacity.families.encoders import block, clip_vision, dense, siglip_vision
from cardwise.core.capacity.families.fields import Fields
from cardwise.core.capacity.shape import ModelShape, Part, Tower

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "vocab_size": 32000,
}
"""What Llama's format fills in where a part of a configuration leaves it out. Source: ``configuration_llama.py``."""
GEMMA3_TEXT = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
"""Likewise for Gemma 3: ``configuration_gemma3.py``."""
_TEXT_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}


def _visual(fields: Fields, hidden: int, *, bias: bool) -> tuple[Part, int]:
    """Patches as a convolution over two frames, and what one merged token holds."""
    patch = fields.whole("patch_size") ** 2 * fields.whole("temporal_patch_size", otherwise=2)
    weights = fields.whole("in_channels", "in_chans", otherwise=3) * patch * hidden + (hidden if bias else 0)
    fields.whole("spatial_patch_size", otherwise=1)
    return Part("patches", weights), hidden * fields.whole("spatial_merge_size", otherwise=2) ** 2


def qwen2_vl(fields: Fields) -> ModelShape:
    """Qwen2-VL."""
    text, seen = fields.within("text_config") or fields, fields.must("vision_config")
    hidden, heads = seen.whole("embed_dim"), seen.whole("num_heads")
    patch, merged = _visual(seen, hidden, bias=False)
    layers = (block(hidden, heads, hidden * seen.whole("mlp_ratio", otherwise=4)),) * seen.whole("depth")
    parts = (patch, norm(2 * hidden), dense(merged, merged), dense(merged, seen.whole("hidden_size")))
    seen.finish()
    return _behind(fields, text, Tower(hidden, layers, parts, None), "Qwen2ForCausalLM")


def qwen25_vl(fields: Fields) -> ModelShape:
    """Qwen2.5-VL: gated feed-forward and windows in its eyes too."""
    text, seen = fields.within("text_config") or fields, fields.must("vision_config")
    hidden, heads = seen.whole("hidden_size"), seen.whole("num_heads")
    patch, merged = _visual(seen, hidden, bias=False)
    one = block(hidden, heads, seen.whole("intermediate_size"), norms=2, matrices=GATED)
    layers = (one,) * seen.whole("depth")
    parts = (patch, norm(hidden), dense(merged, merged), dense(merged, seen.whole("out_hidden_size")))
    seen.finish("window_size", "fullatt_block_indexes")
    return _behind(fields, text, Tower(hidden, layers, parts, None), "Qwen2ForCausalLM")


def qwen3_vl(fields: Fields) -> ModelShape:
    """Qwen3-VL: what its eyes see on the way goes into the first layers too (DeepStack)."""
    text, seen = fields.must("text_config"), fields.must("vision_config")
    hidden, heads = seen.whole("hidden_size"), seen.whole("num_heads")
    patch, merged = _visual(seen, hidden, bias=True)
    layers = (block(hidden, heads, seen.whole("intermediate_size"), matrices=PLAIN),) * seen.whole("depth")
    merging = dense(merged, merged).count + dense(merged, seen.whole("out_hidden_size")).count
    taps = seen.size("deepstack_visual_indexes")
    parts = (
        patch,
        Part("positions", seen.whole("num_position_embeddings") * hidden),
        norm(2 * hidden + 2 * merged * taps),
        Part("head", merging * (1 + taps)),
    )
    seen.finish("deepstack_visual_indexes")
    return _behind(fields, text, Tower(hidden, layers, parts, None), "Qwen3ForCausalLM")


def llava(fields: Fields) -> ModelShape:
    """LLaVA 1.5: CLIP's eyes, two layers, and a language model that ``text_config`` names."""
    text, seen = fields.must("text_config"), fields.must("vision_config")
    kind = text.text("model_type", "llama")
    if kind not in _TEXT_CLASSES:
        raise text.error("model_type", f"is {kind!r}; known behind LLaVA are {', '.join(_TEXT_CLASSES)}")
    if (eyes := seen.text("model_type")) != "clip_vision_model":
        raise seen.error("model_type", f"is {eyes!r}; known before LLaVA is clip_vision_model")
    text = text.fill(LLAMA) if kind == "llama" else text
    tower, hidden = clip_vision(seen), text.whole("hidden_size")
    joined = (*tower.parts, dense(tower.hidden, hidden), dense(hidden, hidden))
    return _behind(fields, text, Tower(tower.hidden, tower.layers, joined, tower.tokens), _TEXT_CLASSES[kind])


def gemma3(fields: Fields) -> ModelShape:
    """Gemma 3 with SigLIP's eyes."""
    text = fields.must("text_config").fill(GEMMA3_TEXT)
    tower, hidden = siglip_vision(fields.must("vision_config")), text.whole("hidden_size")
    joined = (*tower.parts, norm(tower.hidden), Part("head", tower.hidden * hidden))
    return _behind(fields, text, Tower(tower.hidden, tower.layers, joined, tower.tokens), "Gemma3ForCausalLM")


SHAPES: dict[str, Callable[[Fields], ModelShape]] = {
    "Qwen2VLForConditionalGeneration": qwen2_vl,
    "Qwen2_5_VLForConditionalGeneration": qwen25_vl,
    "Qwen3VLForConditionalGeneration": qwen3_vl,
    "LlavaForConditionalGeneration": llava,
    "Gemma3ForConditionalGeneration": gemma3,
}


def _behind(fields: Fields, text: Fields, tower: Tower, like: str) -> ModelShape:
    """The language model behind its eyes. Both say whether the output is tied; the outer one counts."""
    traits = decoders.TRAITS[like]
    tied = fields.flag("tie_word_embeddings", otherwise=traits.tied)
    text.flag("tie_word_embeddings", otherwise=tied)
    made = decoders.build(text, traits, tower=tower, top=fields, tied=tied)
    common.architecture_of(fields)
    if text is not fields:
        fields.finish("vocab_size", "vision_feature_layer", "vision_feature_select_strategy", "projector_hidden_act")
    return made
