"""The planner: what a wish leaves open is filled in from model, engine and card, and told; C36 and the rest hold."""

from __future__ import annotations

import json

import pytest
import yaml

from cardwise.adapters.models import Model
from cardwise.core.capacity.families import shape_of
from cardwise.core.capacity.memory import CONTEXT, KV_CACHE, LORA, WEIGHTS, Lora
from cardwise.core.capacity.replicas import Measured
from cardwise.errors import UserError
from cardwise.plan.catalogue import find_model
from cardwise.plan.manifest import manifest, service_name
from cardwise.plan.planner import Wish, make_plan
from cardwise.plan.report import render, told
from cardwise.plan.tables import tables
from tests.core.capacity.shapes import llama

TABLES = tables()


def plan(name="llama-3-8b", **wish):
    return make_plan(find_model(name), Wish(**wish), TABLES)


def flag(found, name):
    return next(each.partition("=")[2] for each in found.settings.args if each.startswith(f"{name}="))


# ---------------------------------------------------------------- the slice and the flags


@pytest.mark.parametrize("card", ["A10", "RTX 3090", "A100-80GB", "H100"])
@pytest.mark.parametrize("isolation", [None, "mps", "time-slicing"])
def test_the_engines_share_of_the_card_stays_inside_the_slice(card, isolation):
    """C36: fraction × card ≤ slice − reserve, for an engine that sees the whole card."""
    found = plan("llama-3.2-1b", card=card, slice_mib=8192, isolation=isolation)
    share = float(flag(found, "--gpu-memory-utilization"))
    assert share * found.card.memory_mib <= 8192 - 512


def test_under_mig_the_share_is_of_the_slice():
    found = plan("llama-3.2-1b", card="A100-80GB", slice_mib=10_000, isolation="mig")
    assert float(flag(found, "--gpu-memory-utilization")) == pytest.approx((10_000 - 512) / 10_000, abs=0.001)


def test_flags_bound_context_sequences_kv_cache_and_step():
    found = plan(context=2048, sequences=8)
    assert flag(found, "--max-model-len") == "2048"
    assert flag(found, "--max-num-seqs") == "8"
    assert int(flag(found, "--kv-cache-memory-bytes")) == found.memory.of(KV_CACHE)
    assert flag(found, "--max-num-batched-tokens") == "2048"


def test_live_tokens_bound_the_pool_of_engines_that_count_in_tokens():
    assert flag(plan("qwen3-8b", engine="sglang", live_tokens=500), "--max-total-tokens") == str(500 * 32)
    assert flag(plan("qwen3-8b", engine="sglang", live_tokens=1), "--max-total-tokens") == "4096"
    assert "max_tokens: 16000" in plan("qwen3-8b", engine="tensorrt-llm", live_tokens=500).settings.snippet


def test_a_step_is_never_told_fewer_tokens_than_sequences():
    assert flag(plan(sequences=4000, context=128), "--max-num-batched-tokens") == "4000"


def test_a_step_of_tgi_is_never_told_more_tokens_than_the_kv_cache_holds():
    """It does not start then. Source: text-generation-inference v3, backends/v3/src/main.rs."""
    found = plan(engine="tgi", context=512, sequences=1)
    assert flag(found, "--max-batch-prefill-tokens") == flag(found, "--max-batch-total-tokens") == "512"


def test_a_step_that_is_told_for_fewer_tokens_than_sequences_is_refused():
    """vLLM does not start then. Source: vllm/config/scheduler.py."""
    with pytest.raises(UserError, match="--batch-tokens 31 are fewer than the 32 sequences"):
        plan(step_tokens=31)


@pytest.mark.parametrize("wish", [{}, {"slice_mib": 30_000}], ids=["found", "given"])
def test_a_slice_that_is_larger_than_the_card_is_refused_and_no_engine_is_told_to_take_all_of_it(wish):
    found = plan("llama-3.1-70b" if not wish else "llama-3-8b", card="L4", **wish)
    assert found.refused
    assert found.settings.args == ()
    assert "--slice-mib 22394 says what a whole one holds" in found.notes[-1]
    with pytest.raises(UserError, match="no L4 holds a slice of"):
        manifest(found)


@pytest.mark.parametrize(("dtype", "quantization"), [("fp8", "awq"), ("int4", "none")])
def test_two_formats_of_the_same_weights_are_refused(dtype, quantization):
    with pytest.raises(UserError, match=f"--dtype {dtype} and --quantization {quantization} are two formats"):
        plan(dtype=dtype, quantization=quantization)


def test_without_graphs_the_engine_is_told_so():
    assert "--enforce-eager" in plan(eager=True).settings.args


def test_an_encoder_is_told_of_no_kv_cache():
    found = plan("bge-m3", engine="vllm", context=512)
    assert not any("kv-cache" in each for each in found.settings.args)
    assert found.memory.of(KV_CACHE) == 0


# ---------------------------------------------------------------- what is filled in


@pytest.mark.parametrize(
    ("name", "wish", "form"),
    [
        pytest.param("llama-3-8b", {}, "bfloat16", id="as the configuration says"),
        pytest.param("deepseek-v3", {"tp": 8}, "fp8", id="quantized already"),
        pytest.param("gpt-oss-20b", {}, "mxfp4", id="quantized already, experts only"),
        pytest.param("deepseek-v3", {"tp": 8, "dtype": "bf16"}, "bfloat16", id="as told"),
        pytest.param("deepseek-v3", {"tp": 8, "quantization": "none"}, "bfloat16", id="not quantized"),
        pytest.param("llama-3-8b", {"dtype": "int4"}, "awq", id="four bits"),
        pytest.param("llama-3-8b", {"quantization": "gptq"}, "gptq", id="gptq"),
        pytest.param("bge-m3", {}, "float32", id="32 bits stay"),
        pytest.param("bge-m3", {"engine": "vllm"}, "float16", id="32 bits that the engine casts"),
    ],
)
def test_the_number_format_of_weights(name, wish, form):
    assert plan(name, **wish).form.name == form


def test_what_was_assumed_is_told():
    assert any("16 bits are assumed" in note for note in plan("gpt2", context=1024).notes)
    assert any("loads it in 16" in note for note in plan("bge-m3", engine="vllm").notes)
    assert any("needs a checkpoint that was prepared so" in note for note in plan(quantization="awq").notes)
    assert any("--live-tokens" in note for note in plan().notes)
    assert any("of the generation ampere" in note for note in plan().notes)


def test_the_engine_follows_what_the_model_does():
    assert plan("llama-3-8b").engine.name == "vllm"
    assert plan("vit-base-patch16-224").engine.name == "onnxruntime"


def test_the_context_is_no_longer_than_the_model_reaches():
    assert plan("bert-base-uncased").load.context == 512
    assert plan("llama-3.1-8b").load.context == 4096


def test_a_context_beyond_the_model_is_taken_if_it_is_stretched():
    stretched = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    plain, long = (
        Model("x", shape_of(llama(max_position_embeddings=8192, **more))) for more in ({}, {"rope_scaling": stretched})
    )
    assert make_plan(long, Wish(context=32768), TABLES).load.context == 32768
    with pytest.raises(UserError, match="--context 32,768 is beyond the 8,192 tokens"):
        make_plan(plain, Wish(context=32768), TABLES)


def test_a_card_without_bfloat16_is_not_chosen():
    small = plan("llama-3.2-1b", context=1024, sequences=1)
    assert small.slice_mib < TABLES.cards["T4"].usable_mib
    assert small.card.generation == "ampere"


def test_a_model_that_no_card_holds_says_so():
    found = plan("llama-3.1-405b")
    assert found.card is None
    assert any("no known card holds this slice" in note for note in found.notes)


def test_overheads_are_those_of_the_card():
    assert plan(card="H100").memory.of(CONTEXT) > plan(card="A10").memory.of(CONTEXT)


@pytest.mark.parametrize(
    ("name", "wish"),
    [
        ("bge-m3", {"context": 512, "sequences": 64, "engine": "vllm"}),
        ("llama-3.2-1b", {}),
        ("llama-3-8b", {}),
        ("llama-3.1-70b", {"dtype": "fp8"}),
        ("llama-3-8b", {"slice_mib": 20_000}),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_the_card_that_is_chosen_is_the_one_that_is_counted_with(name, wish):
    chosen = plan(name, **wish)
    told_it = plan(name, **wish, card=chosen.card.name)
    assert chosen.load.generation == chosen.card.generation
    assert (chosen.memory, chosen.slice_mib, chosen.cores) == (told_it.memory, told_it.slice_mib, told_it.cores)
    assert chosen.slice_mib <= chosen.card.usable_mib
    smaller = [card for card in TABLES.cards.values() if card.usable_mib < chosen.card.usable_mib]
    able = [card for card in smaller if card.generation not in {"turing", "volta"} or chosen.form.name == "float16"]
    assert all(plan(name, **wish, card=card.name).refused for card in able)


def test_a_manifest_names_the_card_without_an_article():
    assert "# Flags and compute are for card A100-40GB: annotation" in manifest(
        plan(context=2048, sequences=8, card="A100-40GB")
    )


def test_what_the_files_weigh_counts_unless_another_format_is_asked_for():
    model = Model("x", find_model("llama-3-8b").shape, weights_bytes=10**10)
    assert make_plan(model, Wish(), TABLES).memory.of(WEIGHTS) == 10**10
    assert make_plan(model, Wish(quantization="fp8"), TABLES).memory.of(WEIGHTS) < 9.2e9


def test_a_whole_card_gets_all_of_its_compute():
    assert plan(isolation="whole").cores.pct == 100


def test_the_grid_never_falls_with_context_or_sequences():
    cells = {(cell.context, cell.sequences): cell.slice_mib for cell in plan("gemma-3-12b").grid}
    for (context, sequences), amount in cells.items():
        assert cells.get((2 * context, sequences), amount) >= amount
        assert cells.get((context, 2 * sequences), amount) >= amount


def test_adapters_are_counted_in_latent_attention_too_and_not_in_experts():
    """DeepSeek V2 Lite: 27 layers of attention 2048 + 576, 2048 + 3072, 512 + 4096, 2048 + 2048 inputs and outputs;
    one dense layer 3 · (2048 + 10944), 26 with shared experts 3 · (2048 + 2816). Source: its config.json.
    """
    sides = 27 * (2624 + 5120 + 4608 + 4096) + 3 * 12992 + 26 * 3 * 4864
    found = plan("deepseek-v2-lite", lora=Lora(8, 2))
    component = next(each for each in found.memory.components if each.name == LORA)
    assert component.likely == 8 * 2 * sides * 2
    assert "none for experts" in component.formula


# ---------------------------------------------------------------- what is written


def test_a_plan_is_one_json_object():
    found = told(plan(card="A100-80GB", slice_mib=20_000, rate_per_s=10, measured=Measured(5.0, 50)))
    assert json.loads(json.dumps(found)) == found
    assert found["given"]["holds"] is True


@pytest.mark.parametrize(
    ("given", "name"),
    [("Qwen2.5-VL-7B", "qwen2-5-vl-7b"), ("7b.model", "model-7b-model"), ("__", "model"), ("a" * 80, "a" * 50)],
)
def test_a_service_has_a_name_that_kubernetes_takes(given, name):
    assert service_name(given) == name


def test_a_model_of_ones_own_is_mounted_and_ranks_share_memory():
    text = manifest(make_plan(Model("mine", find_model("llama-3-8b").shape), Wish(tp=2), TABLES))
    assert "claimName: models" in text
    assert "- /models/mine" in text
    assert "mountPath: /dev/shm" in text


def test_the_first_request_is_one_that_the_model_answers():
    """Another would be refused by the engine, and the startup probe would end the pod."""
    assert "/v1/completions" in manifest(plan())
    assert "/v1/embeddings" in manifest(plan("bge-m3", engine="vllm", context=512))
    spoken = manifest(plan("whisper-large-v3"))
    assert "/v1/" not in spoken
    assert "# Fill in: a first request in the startup probe" in spoken


@pytest.mark.parametrize("name", ["a\nkind: Evil", "a\x1b[31mred", "a\u2028b", "模型"], ids=ascii)
def test_a_name_of_any_characters_stays_inside_its_comment(name):
    made = manifest(make_plan(Model(name, find_model("llama-3-8b").shape), Wish(), TABLES))
    assert [each["kind"] for each in yaml.safe_load_all(made)] == ["Deployment", "Service"]
    assert render_text(name).isprintable()


def render_text(name):
    shown = make_plan(Model(name, find_model("llama-3-8b").shape), Wish(), TABLES)
    return str(next(iter(render(shown).renderables)))


def test_what_has_to_be_filled_in_is_told_in_the_manifest():
    assert "# Fill in: the image, its command" in manifest(plan("bge-m3", context=512))
    assert "# Fill in: a checkpoint of the model that was prepared in awq." in manifest(plan(quantization="awq"))
    assert "# Percent of compute: unknown" in manifest(plan())
    assert "raise its failureThreshold" in manifest(plan("deepseek-v3", tp=8, card="H200"))
