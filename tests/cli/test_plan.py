"""``cardwise plan`` as a process: the answer, the object, a manifest that can be placed, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET

import msgspec
import pytest
import yaml

from cardwise.core.capacity.families import ARCHITECTURES
from cardwise.loadtest.curve import Knee, curve_text
from tests.cli.test_commands import cardwise
from tests.core.capacity.shapes import llama
from tests.loadtest.test_compare import curve, measured


def plan(*args, cwd=None):
    return cardwise("plan", *args, cwd=cwd)


def told(*args, cwd=None):
    done = plan(*args, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_json_has_the_answer_and_every_component_with_its_source():
    found = told("llama-3-8b", "--dtype", "int8", "--card", "H100")
    assert found["kv_cache_bytes"] == 16 * 2**30
    assert found["weights_bytes"] == pytest.approx(9.088e9, rel=0.001)
    assert found["slice_mib"] * 2**20 >= 1.2 * found["total_bytes"]["likely"]
    assert found["replicas"] == 2
    assert 1 <= found["cores_pct"] <= 100
    assert "--max-model-len=4096" in found["engine_flags"]
    assert all(each["formula"] and each["source"] for each in found["components"])


def test_the_table_says_it_in_words():
    done = plan("llama-3-8b", "--card", "A100-80GB")
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "32 sequences of 4,096 tokens on vllm" in words
    assert "KV cache 131,072 bytes a token; 16,384 MiB for longest × sequences" in words
    assert "unknown without a load test's curve" in words


def test_both_the_longest_and_the_live_tokens_are_shown():
    found = told("llama-3-8b", "--live-tokens", 1024)
    assert found["kv_cache_full_bytes"] == 16 * 2**30
    assert found["kv_cache_live_bytes"] == found["kv_cache_bytes"] == 4 * 2**30


def test_known_models_are_listed():
    done = plan("--list")
    assert "llama-3-8b" in done.stdout
    assert "BAAI/bge-m3" in done.stdout


def test_a_folder_of_ones_own_is_read(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(llama()))
    assert told("mine", cwd=tmp_path)["model"] == "mine"
    assert told("mine/config.json", cwd=tmp_path)["model"] == "mine"


def test_measured_overheads_and_cards_of_ones_own_are_counted_with(tmp_path):
    row = 'likely = 5000\nlow = 5000\nhigh = 5000\nsource = "our agent"\n'
    (tmp_path / "mine.toml").write_text(f"[context_mib.ada]\n{row}")
    (tmp_path / "cards.toml").write_text('[Mine]\ngeneration = "ada"\nmemory_mib = 200000\ngbs = 900\n')
    found = told("llama-3-8b", "--overheads", "mine.toml", "--cards", "cards.toml", "--card", "mine", cwd=tmp_path)
    context = next(each for each in found["components"] if each["name"] == "cuda-context")
    assert (context["bytes"], context["source"]) == (5000 * 2**20, "our agent")
    assert "Mine" in [card["card"] for card in found["cards"]]


def test_a_card_is_known_however_it_is_spelt_and_its_memory_need_not_be_told_again(tmp_path):
    (tmp_path / "cards.toml").write_text('[H20]\ngeneration = "hopper"\ngbs = 4000\n')
    assert (
        "4090's memory"
        in told("llama-3-8b", "--card", "NVIDIA-rtx-4090", "--dtype", "fp8", "--context", 512)["cores_why"]
    )
    found = told("llama-3-8b", "--cards", "cards.toml", "--card", "h20", cwd=tmp_path)
    assert next(card["usable_mib"] for card in found["cards"] if card["card"] == "H20") == 97871 - 640


def test_help_writes_rank_and_count_as_they_are_typed():
    assert "--lora RANKxCOUNT" in plan("--help").stdout


def test_no_card_that_holds_no_slice_is_timed():
    found = told("llama-3-8b", "--card", "A100-80GB")
    assert all((card["step_at_least_ms"] is None) == (card["slices"] == 0) for card in found["cards"])
    assert any(card["slices"] == 0 for card in found["cards"])
    row = next(line.split() for line in plan("llama-3-8b").stdout.splitlines() if line.startswith(" T4"))
    assert row[2:] == ["–", "–"]


# ---------------------------------------------------------------- a given slice


def test_a_given_slice_says_how_many_tokens_are_left():
    found = told("llama-3-8b", "--card", "A100-80GB", "--slice-mib", 20000)
    given = found["given"]
    assert (given["holds"], given["cut"], given["sequences"]) == (True, True, 5)
    assert given["kv_cache_tokens"] * 128 * 1024 <= given["kv_cache_bytes"]
    assert f"--kv-cache-memory-bytes={given['kv_cache_bytes']}" in found["engine_flags"]


def test_a_slice_that_holds_nothing_is_refused_with_the_numbers_and_exit_code_1():
    done = plan("llama-3-8b", "--slice-mib", 16000, "--json")
    assert done.returncode == 1
    given = json.loads(done.stdout)["given"]
    assert given["holds"] is False
    assert "16000 MiB do not hold it" in given["text"]
    assert plan("llama-3-8b", "--slice-mib", 16000).returncode == 1


@pytest.mark.parametrize("form", [[], ["--json"], ["-o", "yaml"]], ids=["table", "json", "yaml"])
@pytest.mark.parametrize("args", [["--slice-mib", 16000], ["--card", "T4"]], ids=["slice", "card"])
def test_what_cannot_run_is_exit_code_1_in_every_form(form, args):
    assert plan("llama-3-8b", *args, *form).returncode == 1


def test_no_manifest_is_written_for_a_slice_that_holds_nothing():
    done = plan("llama-3-8b", "--slice-mib", 16000, "-o", "yaml")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("no manifest: --slice-mib 16000: 16000 MiB do not hold it")


# ---------------------------------------------------------------- replicas


def saved(tmp_path, facts):
    """The results of a load test: 100 answers a second in time at the knee."""
    knee = Knee(axis="rate", load=100.0, goodput_per_s=100.0, p99_ms=50.0, broken_at=120.0, stopped_by="p99")
    return curved(tmp_path, measured(1), knee=knee, facts=facts)


def curved(tmp_path, *steps, **more):
    (tmp_path / "loadtest.json").write_text(curve_text(curve(*steps, **more)))
    return "--curve", tmp_path / "loadtest.json"


def test_replicas_come_from_a_measured_curve(tmp_path):
    found = told("qwen3-8b", "--qps", 900, *saved(tmp_path, {"compute-pct": 50.0}))
    assert (found["replicas"], found["replicas_known"]) == (12, True)
    assert (found["cores_pct"], found["cores_known"]) == (50, True)


def test_a_smaller_share_of_a_card_takes_more_of_them(tmp_path):
    assert told("qwen3-8b", "--qps", 900, "--cores", 20, *saved(tmp_path, {"compute-pct": 50.0}))["replicas"] == 29


def test_the_words_have_the_digits_of_a_measurement(tmp_path):
    third = measured(1, 257.0)
    found = told("qwen3-8b", "--qps", 900, *curved(tmp_path, third, facts={"cards": 3.0, "compute-pct": 150.0}))
    assert (
        "over 85.7/s that a replica with 50 % of a card carries; measured 85.7/s or more at 50 %"
        in found["replicas_why"]
    )


def test_a_single_step_is_told_to_be_no_capacity(tmp_path):
    one = curved(tmp_path, measured(1), facts={"compute-pct": 50.0})
    assert any(
        "the load test found no knee: 100/s held" in note for note in told("qwen3-8b", "--qps", 900, *one)["notes"]
    )
    assert "# Replicas: the load test found no knee" in plan("qwen3-8b", "--qps", 900, *one, "-o", "yaml").stdout


def test_a_knee_whose_answers_did_not_end_is_refused(tmp_path):
    piled = msgspec.structs.replace(measured(1), goodput_per_s=1.0)
    done = plan("qwen3-8b", "--qps", 900, *curved(tmp_path, piled))
    assert done.returncode == 2
    assert "loadtest.json: at 100/s only 40 of 4,000 good answers ended in the counted 40 s" in done.stderr


def test_a_curve_that_holds_nothing_is_refused(tmp_path):
    failed = msgspec.structs.replace(measured(1), holds=False)
    (tmp_path / "bad.json").write_text(curve_text(curve(failed)))
    done = plan("qwen3-8b", "--curve", tmp_path / "bad.json")
    assert done.returncode == 2
    assert "no step of this test held its target" in done.stderr


# ---------------------------------------------------------------- the manifest


def manifest(*args):
    done = plan(*args, "-o", "yaml")
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def test_a_manifest_asks_with_the_names_that_users_write_and_is_probed_as_it_should():
    deployment, service = manifest("llama-3-8b", "--card", "A100-80GB")
    spec = deployment["spec"]["template"]["spec"]
    server = spec["containers"][0]
    limits = server["resources"]["limits"]
    assert set(limits) == {"nvidia.com/gpu", "nvidia.com/gpu.memory", "nvidia.com/gpu.cuda-cores"}
    startup = server["startupProbe"]
    assert [startup[key] for key in ("initialDelaySeconds", "periodSeconds", "failureThreshold")] == [10, 10, 30]
    assert "/v1/completions" in startup["exec"]["command"][2]
    assert server["livenessProbe"]["httpGet"]["path"] == "/health"
    assert server["readinessProbe"]["httpGet"]["path"] == "/health"
    assert spec["terminationGracePeriodSeconds"] > 10
    assert any(each.startswith("--gpu-memory-utilization=") for each in server["args"])
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_replicas_can_never_all_be_on_one_node():
    deployment, _ = manifest("llama-3-8b")
    hard, soft = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert (hard["maxSkew"], hard["minDomains"], hard["whenUnsatisfiable"]) == (1, 2, "DoNotSchedule")
    assert soft["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tgi", "tensorrt-llm"])
def test_every_engine_is_started_with_the_model_and_its_flags(engine):
    deployment, _ = manifest("qwen3-8b", "--engine", engine)
    server = deployment["spec"]["template"]["spec"]["containers"][0]
    assert any("Qwen/Qwen3-8B" in each for each in server["args"])


def test_the_warm_up_request_is_python_that_runs():
    deployment, _ = manifest("llama-3-8b")
    script = deployment["spec"]["template"]["spec"]["containers"][0]["startupProbe"]["exec"]["command"][2]
    compile(script, "startup", "exec")


@pytest.mark.parametrize(
    "args",
    [
        ["llama-3-8b", "--context", 1024, "--concurrency", 4, "--card", "A10", "--dtype", "fp8"],
        ["bge-m3", "--context", 512, "--concurrency", 8],
        ["whisper-large-v3-turbo", "--concurrency", 4],
        ["qwen3-0.6b", "--engine", "sglang", "--mps"],
        ["mixtral-8x7b", "--tp", 8, "--concurrency", 4, "--context", 1024],
    ],
    ids=lambda it: it[0],
)
def test_what_is_written_can_be_placed(args):
    written = plan(*args, "-o", "yaml")
    assert written.returncode == 0, written.stderr
    placed = subprocess.run(
        [sys.executable, "-m", "cardwise", "up", "-f", "-", "--once", "--json", "--cards", "8"],
        input=written.stdout,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert placed.returncode == 0, placed.stderr
    summary = json.loads(placed.stdout)["summary"]
    assert (summary["pods_placed"], summary["pods_pending"], summary["pods_denied"]) == (2, 0, 0), placed.stdout


# ---------------------------------------------------------------- the plot, and refusals


def test_the_plot_is_a_picture_of_its_own(tmp_path):
    assert plan("llama-3-8b", "--plot", tmp_path / "a.svg").returncode == 0
    root = ET.fromstring((tmp_path / "a.svg").read_text())  # noqa: S314 - ours
    assert root.tag.endswith("svg")
    assert "Slice of" in root.attrib["aria-label"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give a model"),
        (["no-such-model"], "no known model; --list shows the known ones"),
        (["llama-3-8b", "--context", "0"], "0 is not in the range"),
        (["llama-3-8b", "--context", "-5"], "-5 is not in the range"),
        (["llama-3-8b", "--context", "8193"], "--context 8,193 is beyond the 8,192 tokens"),
        (["llama-3-8b", "--concurrency", "0"], "0 is not in the range"),
        (["llama-3-8b", "--tp", "3"], "tp is 3, which does not divide"),
        (["llama-3-8b", "--lora", "16"], "is no rank and number of adapters; write such as 16x4"),
        (["llama-3-8b", "--lora", "0x4"], "is no rank"),
        (["llama-3-8b", "--margin", "0.9"], "0.9 is not in the range"),
        (["llama-3-8b", "--margin", "nan"], "is not"),
        (["llama-3-8b", "--dtype", "int3"], "--dtype int3 is not known; write one of"),
        (["llama-3-8b", "--quantization", "q4"], "--quantization q4 is not known; write one of"),
        (["llama-3-8b", "--card", "Voodoo"], "--card Voodoo is not known; write one of T4"),
        (["llama-3-8b", "--card", "A100"], "--card A100 is not known; write one of A100-40GB, A100-80GB"),
        (
            ["llama-3-8b", "--card", "RTX 5090"],
            "write one of RTX 4090, RTX 3090, RTX A6000, or give others with --cards FILE",
        ),
        (["llama-3-8b", "--card", "H20"], "--card H20 is known by its memory only, 97,871 MiB: give --cards FILE"),
        (["llama-3-8b", "--engine", "onnxruntime"], "keeps no KV cache, and LlamaForCausalLM generates"),
        (["llama-3-8b", "--live-tokens", "5000"], "--live-tokens 5,000 are more than the context"),
        (["llama-3-8b", "--mps", "--isolation", "mig"], "are two modes"),
        (["llama-3-8b", "--json", "-o", "yaml"], "are two forms"),
        (["llama-3-8b", "--qps", "0"], "0.0 is not in the range"),
        (["llama-3-8b", "--curve", "none.json"], "none.json: no such file"),
        (["llama-3-8b", "--overheads", "none.toml"], "none.toml: no such file"),
        (["llama-3-8b", "--plot", "no/such/folder.svg"], "cannot be written"),
        (["bert-base-uncased", "--lora", "8x1", "--context", "600"], "is beyond the 512 tokens"),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_what_is_wrong_is_one_sentence_and_exit_code_2(tmp_path, args, message):
    done = plan(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (llama(hidden_size="absent"), "config.json: hidden_size: is missing; write a whole number"),
        (
            llama(architectures=["NewForCausalLM"]),
            f"'NewForCausalLM', which is not known here; known are {ARCHITECTURES[0]}",
        ),
        (llama(linear_attn_config={"kda": 1}), "config.json: linear_attn_config: is"),
    ],
    ids=["missing field", "unknown architecture", "unknown attention"],
)
def test_a_configuration_that_is_not_understood_names_file_and_field(tmp_path, config, message):
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = plan("config.json", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
