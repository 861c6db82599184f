"""Which weights lie on a node's disks: what is complete is told by the name that pods load it by, and nothing else."""

from __future__ import annotations

import json

import pytest

from cardwise.adapters import wire
from cardwise.adapters.node_cards import node_spec
from cardwise.agent import models
from cardwise.agent.models import ModelFolders, models_in
from tests.agent.a_node import GpuNode
from tests.builders import node as node_of
from tests.scheduler.fake_cluster import node_object

INDEX = "model.safetensors.index.json"


def cached(folder, name, files=("config.json", "model.safetensors"), *, incomplete=False):
    """As huggingface_hub leaves a model: blobs, and a snapshot of links to them."""
    entry = folder / f"models--{name.replace('/', '--')}"
    (entry / "blobs").mkdir(parents=True)
    (entry / "snapshots" / "0123").mkdir(parents=True)
    for file in files:
        blob, link = entry / "blobs" / file.replace("/", "-"), entry / "snapshots" / "0123" / file
        blob.write_text("{}")
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(blob)
    if incomplete:
        (entry / "blobs" / "def.incomplete").touch()


@pytest.mark.parametrize("name", ["meta-llama/Meta-Llama-3-8B", "gpt2", "org/two--dashes"])
def test_a_model_of_the_cache_has_the_name_by_which_it_was_loaded(tmp_path, name):
    cached(tmp_path, name)
    assert list(models_in(tmp_path)) == [name]


@pytest.mark.parametrize(
    ("names", "is_there"),
    [
        (("config.json", "model.safetensors"), True),
        (("config.json", "pytorch_model.bin"), True),
        (("model-q4.gguf",), True),
        (("onnx/model.onnx", "config.json"), True),
        (("config.json", "tokenizer.json"), False),
        ((), False),
    ],
    ids=["safetensors", "PyTorch", "GGUF", "in a folder", "a tokenizer alone", "nothing yet"],
)
def test_weights_are_what_counts(tmp_path, names, is_there):
    """Whoever counts tokens, or reads a configuration, leaves a cache without weights."""
    cached(tmp_path, "org/name", names)
    assert list(models_in(tmp_path)) == ["org/name"] * is_there


def test_a_download_that_is_under_way_or_was_broken_off_does_not_count(tmp_path):
    cached(tmp_path, "org/name", incomplete=True)
    assert list(models_in(tmp_path)) == []


def test_a_model_of_which_a_shard_is_missing_does_not_count(tmp_path):
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    cached(tmp_path, "org/name", ("config.json", INDEX, shards[0]))
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123"
    blob = tmp_path / "models--org--name" / "blobs" / INDEX
    blob.write_text(json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}))
    assert list(models_in(tmp_path)) == []
    (snapshot / shards[1]).write_bytes(b"weights")
    assert list(models_in(tmp_path)) == ["org/name"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"weight_map": 3}', "[" * 5000])
def test_an_index_that_is_none_is_one_model_less(tmp_path, text):
    cached(tmp_path, "gpt2")
    cached(tmp_path, "org/name", (INDEX, "model.safetensors"))
    (tmp_path / "models--org--name" / "blobs" / INDEX).write_text(text)
    assert list(models_in(tmp_path)) == ["gpt2"]


def test_a_folder_with_a_configuration_is_a_model_and_others_are_not(tmp_path):
    for name in ("bert", "datasets--org--corpus", "a,b"):
        (tmp_path / name).mkdir()
    for name in ("bert", "a,b"):  # names stand in a list with commas
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "version.txt").touch()
    assert list(models_in(tmp_path)) == ["bert"]


def test_a_folder_that_is_not_there_has_no_models(tmp_path):
    assert list(models_in(tmp_path / "absent")) == []


def test_disks_are_looked_at_once_a_minute(tmp_path):
    now = [1000.0]
    folders = ModelFolders([tmp_path], lambda: now[0])
    assert folders() == frozenset()
    cached(tmp_path, "gpt2")
    now[0] += models.LOOK_S - 1
    assert folders() == frozenset()
    now[0] += 1
    assert folders() == {"gpt2"}


def test_more_models_than_an_annotation_holds_are_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(models, "MOST_MODELS", 2)
    for name in ("c", "b", "a"):
        cached(tmp_path, name)
    assert ModelFolders([tmp_path])() == {"a", "b"}


async def test_what_is_on_disk_reaches_the_scheduler_by_the_same_name(tmp_path):
    """SPEC F1, B2."""
    cached(tmp_path, "meta-llama/Meta-Llama-3-8B")
    cached(tmp_path, "gpt2")
    async with GpuNode("A10", settings={"model_folders": (str(tmp_path),)}) as node:
        await node.until(lambda: node.port.annotations.get(wire.ANNOTATION_CACHED_MODELS))
        told = {wire.ANNOTATION_CACHED_MODELS: node.port.annotations[wire.ANNOTATION_CACHED_MODELS]}
    spec = node_spec(node_object(node_of(), annotations=told))
    assert spec.cached_models == {"meta-llama/Meta-Llama-3-8B", "gpt2"}
