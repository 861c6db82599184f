"""Models that read a text or an image whole: BERT and its kin, ModernBERT, ViT, CLIP; and Whisper, which also writes.

Source: transformers 5.24, ``models/<model_type>/modeling_*.py``. They keep nothing between requests; Whisper's decoder
keeps keys and values of its text and of the sound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cardwise.core.capacity.families import common
from cardwise.core.capacity.families.blocks import (
    GATED,
    PLAIN,
    Biases,
    attention_parts,
    dense_layer,
    embedding,
    norm,
)
from cardwise.core.capacity.families.fields import Fields
from cardwise.core.capacity.shape import Attention, Kind, Layer, ModelShape, Part, Tower

LABELS = 2
"""Of a classifier whose labels are not written: the format's own default."""


def block(
    hidden: int,
    heads: int,
    inner: int,
    *,
    bias: Biases | None = None,
    cached: bool = False,
    norms: int = 4,
    matrices: int = PLAIN,
    mlp_bias: bool = True,
) -> Layer:
    """A block of multi-head attention and a feed-forward, both with biases unless told otherwise."""
    attention = Attention(heads, heads, hidden // heads, cached=cached)
    biases = Biases.all(True) if bias is None else bias
    return dense_layer(hidden, inner, attention, biases, mlp_bias=mlp_bias, norms=norms, matrices=matrices)


def dense(inputs: int, outputs: int, name: str = "head") -> Part:
    """A linear layer with a bias that is not quantized."""
    return Part(name, inputs * outputs + outputs)


# ---------------------------------------------------------------- BERT, RoBERTa, XLM-R


def _labels(fields: Fields) -> int:
    return fields.whole("num_labels", otherwise=fields.size("id2label") or LABELS)


def _bert_head(name: str, fields: Fields, hidden: int, vocab: int) -> tuple[Part, ...]:
    """What stands behind the encoder, by the end of the class' name."""
    roberta = "Roberta" in name
    pooler = dense(hidden, hidden, "pooler")
    if name.endswith("Model"):
        return (pooler,)
    if name.endswith("ForMaskedLM"):
        return (dense(hidden, hidden), norm(2 * hidden), Part("output", vocab))
    first = dense(hidden, hidden) if roberta else pooler
    return (first, dense(hidden, _labels(fields)))


def bert(fields: Fields) -> ModelShape:
    """BERT; RoBERTa and XLM-R count positions from 2, so two of them are never a token's."""
    name = common.architecture_of(fields)
    roberta = "Roberta" in name
    hidden, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    positions = fields.whole("max_position_embeddings")
    heads, inner = fields.whole("num_attention_heads"), fields.whole("intermediate_size")
    common.check_heads(fields, hidden, heads)
    if (kind := fields.text("position_embedding_type", "absolute")) != "absolute":
        raise fields.error("position_embedding_type", f"is {kind!r}; only 'absolute' is known here")
    if fields.flag("is_decoder", otherwise=False):
        raise fields.error("is_decoder", "is true; only encoders of this architecture are known here")
    layers = [block(hidden, heads, inner)] * fields.whole("num_hidden_layers")
    parts = (
        embedding(vocab, hidden),
        embedding(positions + fields.whole("type_vocab_size", otherwise=2), hidden, "positions"),
        norm(2 * hidden),
        *_bert_head(name, fields, hidden, vocab),
    )
    context = positions - (2 if roberta else 0)
    return _encoder(fields, hidden, layers, parts, vocab=vocab if name.endswith("MaskedLM") else 0, context=context)


def modern_bert(fields: Fields) -> ModelShape:
    """ModernBERT: no biases, gated feed-forward, two of three layers look at a window."""
    name = common.architecture_of(fields)
    hidden, vocab = fields.whole("hidden_size"), fields.whole("vocab_size")
    heads, inner, count = (
        fields.whole(each) for each in ("num_attention_heads", "intermediate_size", "num_hidden_layers")
    )
    common.check_heads(fields, hidden, heads)
    bias = Biases.all(fields.flag("attention_bias", otherwise=False))
    mlp_bias = fields.flag("mlp_bias", otherwise=False)
    if fields.flag("norm_bias", otherwise=False) or bias.query or mlp_bias:
        raise fields.error("attention_bias", "or norm_bias or mlp_bias is true; only false is known here")
    every = fields.whole("global_attn_every_n_layers", otherwise=3)
    window = fields.whole("local_attention", otherwise=128)
    of = common.windows(fields, count, window, sliding=[i for i in range(count) if i % every])
    one = block(hidden, heads, inner, bias=bias, norms=2, matrices=GATED, mlp_bias=False)
    layers = [replace(one, attention=replace(one.attention, window=each)) for each in of]
    head: tuple[Part, ...] = ()
    if not name.endswith("Model"):
        last = Part("output", vocab) if name.endswith("MaskedLM") else dense(hidden, _labels(fields))
        head = (Part("head", hidden * hidden), norm(hidden), last)
    # The first layer has no norm before its attention: the one after the embeddings takes its place.
    parts = (embedding(vocab, hidden), norm(hidden), *head)
    context = common.context_of(fields)
    fields.flag("decoder_bias", otherwise=True)
    return _encoder(fields, hidden, layers, parts, vocab=vocab if name.endswith("MaskedLM") else 0, context=context)


# ---------------------------------------------------------------- images


def patches(fields: Fields) -> int:
    """How many patches an image is cut into."""
    image, patch = fields.whole("image_size"), fields.whole("patch_size")
    if image < patch:
        raise fields.error("patch_size", f"is {patch}, larger than image_size {image}")
    return (image // patch) ** 2


def _patch_weights(fields: Fields, hidden: int) -> int:
    return fields.whole("num_channels", otherwise=3) * fields.whole("patch_size") ** 2 * hidden


def vit(fields: Fields) -> ModelShape:
    """Vision transformer, with its pooler or its classifier."""
    name = common.architecture_of(fields)
    hidden, tokens = fields.whole("hidden_size"), patches(fields) + 1
    heads = fields.whole("num_attention_heads")
    common.check_heads(fields, hidden, heads)
    bias = fields.flag("qkv_bias", otherwise=True)
    one = block(hidden, heads, fields.whole("intermediate_size"), bias=Biases(bias, bias, bias, output=True))
    head = (
        dense(hidden, fields.whole("pooler_output_size", otherwise=hidden), "pooler")
        if name == "ViTModel"
        else dense(hidden, _labels(fields))
    )
    parts = (
        Part("patches", _patch_weights(fields, hidden) + hidden),
        embedding(tokens + 1, hidden, "positions"),
        norm(2 * hidden),
        head,
    )
    return _encoder(fields, hidden, [one] * fields.whole("num_hidden_layers"), parts, vocab=0, context=tokens)


def clip_vision(fields: Fields) -> Tower:
    """CLIP's image side, without a projection."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    common.check_heads(fields, hidden, heads)
    tokens = patches(fields) + 1
    layers = (block(hidden, heads, fields.whole("intermediate_size")),) * fields.whole("num_hidden_layers")
    parts = (
        Part("patches", _patch_weights(fields, hidden)),
        embedding(tokens + 1, hidden, "positions"),
        norm(4 * hidden),
    )
    fields.finish("vocab_size", "projection_dim")
    return Tower(hidden, layers, parts, tokens)


def siglip_vision(fields: Fields) -> Tower:
    """SigLIP's image side without its pooling head, as language models use it."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    common.check_heads(fields, hidden, heads)
    if fields.flag("vision_use_head", otherwise=True):
        raise fields.error("vision_use_head", "is true or missing; only false is known here")
    tokens = patches(fields)
    layers = (block(hidden, heads, fields.whole("intermediate_size")),) * fields.whole("num_hidden_layers")
    parts = (
        Part("patches", _patch_weights(fields, hidden) + hidden),
        embedding(tokens, hidden, "positions"),
        norm(2 * hidden),
    )
    fields.finish()
    return Tower(hidden, layers, parts, tokens)


CLIP_TEXT = {
    "vocab_size": 49408,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "max_position_embeddings": 77,
}
CLIP_VISION = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 32,
}
"""What CLIP's format fills in where a part of a configuration leaves it out. Source: ``configuration_clip.py``."""


def clip(fields: Fields) -> ModelShape:
    """CLIP: a text and an image encoder with a projection each."""
    text = (fields.within("text_config") or Fields({}, "text_config.")).fill(CLIP_TEXT)
    tower = clip_vision((fields.within("vision_config") or Fields({}, "vision_config.")).fill(CLIP_VISION))
    projection = fields.whole("projection_dim", otherwise=512)
    hidden, heads = text.whole("hidden_size"), text.whole("num_attention_heads")
    common.check_heads(text, hidden, heads)
    positions = text.whole("max_position_embeddings")
    layers = [block(hidden, heads, text.whole("intermediate_size"))] * text.whole("num_hidden_layers")
    parts = (
        embedding(text.whole("vocab_size"), hidden),
        embedding(positions, hidden, "positions"),
        norm(2 * hidden),
        Part("projections", projection * (hidden + tower.hidden) + 1),
    )
    made = common.make(fields, Kind.ENCODER, hidden, layers, parts, vocab=0, context=positions, tower=tower)
    text.finish()
    fields.finish()
    return made


# ---------------------------------------------------------------- sound


def whisper(fields: Fields) -> ModelShape:
    """Whisper: the encoder reads 30 s of sound, the decoder writes its text."""
    hidden, vocab, mels = fields.whole("d_model"), fields.whole("vocab_size"), fields.whole("num_mel_bins")
    sounds, positions = fields.whole("max_source_positions"), fields.whole("max_target_positions")
    read_heads, write_heads = fields.whole("encoder_attention_heads"), fields.whole("decoder_attention_heads")
    common.check_heads(fields, hidden, read_heads)
    common.check_heads(fields, hidden, write_heads)
    bias = Biases(query=True, value=True, output=True)
    reading = block(hidden, read_heads, fields.whole("encoder_ffn_dim"), bias=bias)
    writing = block(hidden, write_heads, fields.whole("decoder_ffn_dim"), bias=bias, cached=True, norms=6)
    crossing = attention_parts(hidden, writing.attention, bias)
    decoder = Layer(replace(writing.attention, fixed_tokens=sounds), (*writing.parts, *crossing), writing.mlp_width)
    front = Part("patches", 3 * hidden * (mels + hidden) + 2 * hidden)
    tower = Tower(
        hidden,
        (reading,) * fields.whole("encoder_layers"),
        (front, embedding(sounds, hidden, "positions"), norm(2 * hidden)),
        sounds,
    )
    head = () if fields.flag("tie_word_embeddings", otherwise=True) else (embedding(vocab, hidden, "output"),)
    parts = (embedding(vocab, hidden), embedding(positions, hidden, "positions"), *head, norm(2 * hidden))
    layers = [decoder] * fields.whole("decoder_layers")
    made = common.make(fields, Kind.TRANSCRIBER, hidden, layers, parts, vocab=vocab, context=positions, tower=tower)
    fields.finish()
    return made


SHAPES: dict[str, Callable[[Fields], ModelShape]] = {
    **{
        f"{family}{head}": bert
        for family in ("Bert", "Roberta", "XLMRoberta")
        for head in ("Model", "ForMaskedLM", "ForSequenceClassification")
    },
    **{f"ModernBert{head}": modern_bert for head in ("Model", "ForMaskedLM", "ForSequenceClassification")},
    "ViTModel": vit,
    "ViTForImageClassification": vit,
    "CLIPModel": clip,
    "WhisperForConditionalGeneration": whisper,
}


def _encoder(
    fields: Fields, hidden: int, layers: Sequence[Layer], parts: Sequence[Part], *, vocab: int, context: int | None
) -> ModelShape:
    made = common.make(fields, Kind.ENCODER, hidden, layers, parts, vocab=vocab, context=context)
    fields.finish("classifier_bias", "classifier_pooling")
    return made
