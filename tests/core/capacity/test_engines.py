"""Engine profiles: what is told never exceeds the slice, and a model that does not fit is a value, not a start."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.capacity.engines import (
    ENGINES,
    SHARE_FLAGS,
    Needs,
    Shortage,
    SliceShape,
    flags_for,
    margin_mib,
    share_of,
    share_text,
)

MIB = 2**20
C37 = Needs(14000 * MIB, 8000 * MIB, 0, 1500 * MIB, 600 * MIB, 4096, 16, 1, None, None)
SHARING = sorted(SHARE_FLAGS)


def needs(**changed):
    told = {field: getattr(C37, field) for field in C37.__slots__}
    return Needs(**{**told, **changed})


def value(settings, flag):
    (found,) = [arg.partition("=")[2] for arg in settings.args if arg.partition("=")[0] == flag]
    return found


@st.composite
def slices(draw):
    """A slice of a card, and an engine that sees the card or only the slice."""
    card = draw(st.integers(1024, 200_000))
    memory = draw(st.integers(1, card))
    return SliceShape(memory, card, draw(st.integers(0, 100)), draw(st.sampled_from([card, memory])))


amounts = st.integers(0, 100_000).map(lambda mib: mib * MIB)
models = st.builds(
    Needs, amounts, amounts, amounts, amounts, amounts,
    st.integers(1, 131_072), st.integers(1, 512), st.integers(1, 8),
    st.sampled_from([None, "fp8", "auto"]), st.sampled_from([None, "awq"]),
)  # fmt: skip


# ---------------------------------------------------------------- a share


def test_an_8_gib_slice_of_a_24_gib_card_is_told_a_share_that_leaves_the_reserve():
    """Case C36, by hand: the reserve is max(512, 5 % of 8192 = 410) = 512, and 7680 / 24576 = 0.3125."""
    settings = flags_for("vllm", SliceShape(8192, 24576, 30, 24576), None)
    assert settings.args == ("--gpu-memory-utilization=0.3125",)
    assert Fraction("0.3125") * 24576 <= 8192 - margin_mib(8192)


def test_an_engine_that_sees_only_its_slice_is_told_a_share_of_the_slice():
    settings = flags_for("vllm", SliceShape(8192, 24576, 30, 8192), None)
    assert settings.args == ("--gpu-memory-utilization=0.9375",)


@pytest.mark.parametrize(("slice_mib", "margin"), [(1, 512), (8192, 512), (10240, 512), (10241, 513), (81920, 4096)])
def test_the_margin_is_5_percent_and_512_mib_at_least_rounded_up(slice_mib, margin):
    assert margin_mib(slice_mib) == margin


@given(st.integers(1, 200_000), st.integers(1, 200_000))
def test_a_share_is_rounded_down_and_never_0_and_never_more_than_all(usable, seen):
    share = Fraction(share_text(usable, seen))
    assert 0 < share <= 1
    assert share * seen <= usable


@pytest.mark.parametrize("usable", [0, -1])
def test_nothing_is_no_share(usable):
    with pytest.raises(ValueError, match="is no share"):
        share_text(usable, 24576)


@given(st.sampled_from(SHARING), slices(), st.none() | models)
def test_what_an_engine_is_told_is_never_more_than_the_slice_less_the_margin(engine, slice_, model):
    settings = flags_for(engine, slice_, model)
    if settings.refusal is None:
        share = Fraction(value(settings, SHARE_FLAGS[engine].name))
        assert share * slice_.seen_mib <= slice_.memory_mib - margin_mib(slice_.memory_mib)


@given(st.sampled_from(ENGINES), slices())
def test_the_share_for_the_webhook_is_the_one_of_the_profile_or_less_than_the_slice(engine, slice_):
    share = share_of(engine, slice_)
    if isinstance(share, Shortage):
        assert slice_.memory_mib <= margin_mib(slice_.memory_mib)
    else:
        assert Fraction(share) * slice_.seen_mib <= slice_.memory_mib - margin_mib(slice_.memory_mib)


# ---------------------------------------------------------------- a known model


def test_a_model_that_is_over_by_100_has_its_kv_cache_cut_by_100():
    """Case C37: 14000 + 8000 + 1500 + 600 = 24100 in 24000, where the reserve is in the numbers already."""
    settings = flags_for("vllm", SliceShape(24000, 81920, 30, 81920), C37, reserve_mib=0)
    assert value(settings, "--kv-cache-memory-bytes") == str(7900 * MIB)
    assert value(settings, "--max-num-seqs") == "15"  # 7900 / 500 MiB each
    assert "cut to 7900 MiB, 15 sequences" in settings.notes[-1]
    assert "100 MiB over the slice" in settings.notes[-1]


def test_the_margin_comes_off_the_kv_cache_too_unless_a_reserve_is_told():
    settings = flags_for("vllm", SliceShape(24000, 81920, 30, 81920), C37)
    assert settings.kv_bytes == (7900 - 1200) * MIB
    assert settings.sequences == 13


def test_a_model_that_fits_keeps_what_it_asked_for():
    settings = flags_for("vllm", SliceShape(40000, 81920, 30, 81920), C37)
    assert (settings.kv_bytes, settings.sequences) == (8000 * MIB, 16)
    assert not any("cut" in note for note in settings.notes)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_model_that_leaves_no_room_for_one_sequence_is_refused_with_the_numbers(engine):
    settings = flags_for(engine, SliceShape(17000, 81920, 30, 81920), C37)
    assert settings.refusal == Shortage(17000, 850, 16100, 50, 500, 7100)
    assert "make 17450 MiB; ask for at least that much" in settings.refusal.text
    assert (settings.args, settings.env, settings.snippet) == ((), (), "")


@given(st.sampled_from(ENGINES), slices(), models)
def test_a_model_is_refused_or_all_of_it_fits_beside_the_margin(engine, slice_, model):
    settings = flags_for(engine, slice_, model)
    room = (slice_.memory_mib - margin_mib(slice_.memory_mib)) * MIB
    if settings.refusal is not None:
        assert model.fixed_bytes + model.kv_bytes // model.max_sequences >= room - 1
        assert settings.refusal.text
    else:
        assert model.fixed_bytes + settings.kv_bytes <= room
        assert settings.kv_bytes <= model.kv_bytes
        assert settings.sequences <= model.max_sequences


@given(slices(), models)
def test_tokens_that_are_told_take_no_more_than_the_kv_cache_that_was_granted(slice_, model):
    settings = flags_for("sglang", slice_, model)
    if settings.refusal is None:
        tokens = int(value(settings, "--max-total-tokens"))
        assert tokens * model.kv_bytes <= settings.kv_bytes * model.tokens


@pytest.mark.parametrize(
    ("engine", "flag"), [("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph"), ("tgi", "--cuda-graphs=0")]
)
def test_graphs_that_are_not_in_the_plan_are_switched_off(engine, flag):
    large = SliceShape(80000, 81920, 100, 81920)
    assert flag not in flags_for(engine, large, C37).args
    assert flag in flags_for(engine, large, needs(graph_bytes=0)).args


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("vllm", ("--tensor-parallel-size=2", "--kv-cache-dtype=fp8", "--quantization=awq")),
        ("sglang", ("--tp-size=2", "--kv-cache-dtype=fp8_e4m3", "--quantization=awq")),
        ("tgi", ("--num-shard=2", "--kv-cache-dtype=fp8_e4m3fn", "--quantize=awq")),
    ],
)
def test_each_engine_hears_its_own_names(engine, told):
    settings = flags_for(engine, SliceShape(80000, 81920, 100, 81920), needs(tp=2, kv_dtype="fp8", quantization="awq"))
    assert set(told) <= set(settings.args)


def test_a_model_without_a_kv_cache_is_not_told_one_of_0_bytes_which_engines_read_as_any():
    for engine in ("vllm", "tensorrt-llm"):
        settings = flags_for(engine, SliceShape(40000, 81920, 30, 81920), needs(kv_bytes=0))
        assert "bytes" not in " ".join(settings.args) + settings.snippet


# ---------------------------------------------------------------- engines without a share


def test_tensorrt_llm_is_bounded_in_tokens_and_bytes_and_not_at_all_without_a_model():
    large = SliceShape(40000, 81920, 100, 81920)
    assert flags_for("tensorrt-llm", large, C37).snippet.splitlines() == [
        "kv_cache_config:",
        "  max_tokens: 65536",
        f"  max_gpu_total_bytes: {8000 * MIB}",
    ]
    unknown = flags_for("tensorrt-llm", large, None)
    assert (unknown.args, unknown.snippet) == ((), "")
    assert "no bound that holds on a shared card" in unknown.notes[0]


def test_the_arena_of_onnx_runtime_is_the_slice_less_the_margin():
    assert (
        f'"gpu_mem_limit": {7680 * MIB},' in flags_for("onnxruntime", SliceShape(8192, 24576, 30, 24576), None).snippet
    )


def test_the_pools_of_triton_and_its_backend_are_the_slice_less_the_margin():
    settings = flags_for("triton", SliceShape(8192, 24576, 30, 24576), None)
    assert settings.args == (f"--cuda-memory-pool-byte-size=0:{64 * MIB}",)
    assert f'string_value: "{(7680 - 64) * MIB}"' in settings.snippet


def test_pytorch_is_told_a_line_of_its_own():
    settings = flags_for("pytorch", SliceShape(8192, 24576, 30, 24576), None)
    assert settings.snippet == "torch.cuda.set_per_process_memory_fraction(0.3125)"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_says_what_its_settings_do_not_bound(engine):
    assert flags_for(engine, SliceShape(8192, 24576, 30, 24576), None).notes


def test_an_engine_that_is_not_known_is_told_which_are():
    with pytest.raises(ValueError, match="no engine 'ollama' is known; write vllm, sglang"):
        flags_for("ollama", SliceShape(8192, 24576, 30, 24576), None)
