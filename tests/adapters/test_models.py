"""Model folders as they are found: whole, without weights, with a shard missing or cut off, with fields of others."""

from __future__ import annotations

import json
import struct

import pytest

from cardwise.adapters.models import read_model, tensor_bytes
from cardwise.core.capacity.memory import WEIGHTS, memory_of
from cardwise.errors import InputError
from tests.core.capacity.shapes import TABLES, VLLM, llama, load

WIDTH = {"BF16": 2, "F32": 4, "F8_E4M3": 1}


def safetensors(path, tensors, *, metadata=True):
    """A file as the format has it, of zeros. tensors: name to number format and count."""
    header, at = ({"__metadata__": {"format": "pt"}} if metadata else {}), 0
    for name, (dtype, count) in tensors.items():
        size = WIDTH[dtype] * count
        header[name] = {"dtype": dtype, "shape": [count], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return at


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    return tmp_path


def sharded(folder, shards):
    """Shards and their index."""
    for name, tensors in shards.items():
        safetensors(folder / name, tensors)
    names = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def test_a_configuration_alone_is_enough(folder):
    for given in (folder, folder / "config.json"):
        model = read_model(given)
        assert model.name == folder.name
        assert model.shape.hidden == 64
        assert model.weights_bytes is None


def test_one_file_is_weighed_by_its_header(folder):
    size = safetensors(folder / "model.safetensors", {"a": ("BF16", 100), "b": ("F8_E4M3", 10)})
    assert read_model(folder).weights_bytes == size == 210


def test_shards_are_weighed_together_and_other_files_left_out(folder):
    sharded(folder, {"one.safetensors": {"a": ("BF16", 100)}, "two.safetensors": {"b": ("F32", 10)}})
    safetensors(folder / "consolidated.safetensors", {"all": ("F32", 1000)})
    assert read_model(folder).weights_bytes == 240


def test_what_the_files_weigh_is_what_the_plan_counts_with(folder):
    safetensors(folder / "model.safetensors", {"a": ("BF16", 100)})
    model = read_model(folder)
    found = memory_of(
        model.shape, TABLES.formats["bfloat16"], VLLM, load(), TABLES.overheads, weights_bytes=model.weights_bytes
    )
    assert found.of(WEIGHTS) == 200


def test_layers_after_the_last_are_not_loaded(folder):
    """DeepSeek keeps there what predicts further tokens: 14 of the 685 billion weights of its repository."""
    tensors = {"model.layers.1.w": ("BF16", 100), "model.layers.2.w": ("BF16", 30)}
    safetensors(folder / "model.safetensors", tensors)
    model = read_model(folder)
    assert model.weights_bytes == 200
    assert "60 bytes predict further tokens" in model.notes[0]


def test_an_output_that_is_the_embeddings_once_more_is_loaded_once(folder):
    (folder / "config.json").write_text(json.dumps(llama(tie_word_embeddings=True)))
    safetensors(
        folder / "model.safetensors", {"model.embed_tokens.weight": ("BF16", 50), "lm_head.weight": ("BF16", 50)}
    )
    model = read_model(folder)
    assert model.weights_bytes == 100
    assert "embeddings once more" in model.notes[0]


def refusal(given):
    with pytest.raises(InputError) as refused:
        read_model(given)
    return str(refused.value)


def test_a_missing_shard_is_named(folder):
    sharded(folder, {"one.safetensors": {"a": ("BF16", 1)}, "two.safetensors": {"b": ("BF16", 1)}})
    (folder / "two.safetensors").unlink()
    assert "lacks two.safetensors, which model.safetensors.index.json names" in refusal(folder)


def test_an_index_cannot_name_files_elsewhere(folder, tmp_path):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret"}}))
    assert "names a file outside of its folder" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is cut off or no safetensors file", id="empty"),
        pytest.param(b"\x05\x00\x00", "is cut off or no safetensors file", id="short"),
        pytest.param(
            struct.pack("<Q", 2**62) + b"{}", "is cut off or no safetensors file", id="length beyond the file"
        ),
        pytest.param(struct.pack("<Q", 4) + b"oops", "has a header that is not as the format says", id="no JSON"),
        pytest.param(
            struct.pack("<Q", 10) + b'{"a": {} }', "has a header that is not as the format says", id="no offsets"
        ),
        pytest.param(
            struct.pack("<Q", 33) + b'{"a": {"data_offsets": [0, 100]}}', "is 41 bytes, 141 in its header", id="cut off"
        ),
        pytest.param(
            struct.pack("<Q", 30) + b'{"a": {"data_offsets": [9,0]}}', "in its header; fetch it again", id="negative"
        ),
    ],
)
def test_a_broken_file_is_one_sentence_with_its_name(folder, content, message):
    (folder / "model.safetensors").write_bytes(content)
    told = refusal(folder)
    assert told.startswith(str(folder / "model.safetensors"))
    assert message in told


def headed(path, entries, data_bytes):
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))


@pytest.mark.parametrize(
    "spans", [[[-100, 10]], [[0, 10], [0, 10]], [[4, 10]]], ids=["from below 0", "two tensors' bytes", "a hole"]
)
def test_tensors_that_are_not_the_bytes_of_the_file_are_refused(folder, spans):
    headed(folder / "model.safetensors", {f"t{i}": {"data_offsets": span} for i, span in enumerate(spans)}, 10)
    with pytest.raises(InputError, match="has 10 bytes for tensors of"):
        read_model(folder)


@pytest.mark.parametrize("digits", ["1", "0001", "9" * 5000], ids=["one", "zeros", "more than Python reads"])
def test_the_layer_of_a_tensor_may_have_any_digits(folder, digits):
    last = "1" if digits != "9" * 5000 else "0"
    headed(folder / "model.safetensors", {f"layers.{digits}.w": {"data_offsets": [0, 10]}}, 10)
    assert read_model(folder).weights_bytes == 10 * int(last)


def test_a_shard_whose_name_no_file_system_has_is_missing(folder):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "x" * 5000}}))
    with pytest.raises(InputError, match="lacks 'xxxx"):
        read_model(folder)


def test_of_many_missing_shards_a_few_are_named_and_the_others_counted(folder):
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {f"t{i}": f"s{i}" for i in range(3000)}})
    )
    with pytest.raises(InputError, match=r"lacks s0, s1, .* and 2,992 more, which"):
        read_model(folder)


def test_shards_without_an_index_are_not_guessed_at(folder):
    safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", 1)})
    assert "holds model-00001-of-00002.safetensors but no model.safetensors.index.json" in refusal(folder)


def test_a_folder_without_a_configuration_says_what_to_give(tmp_path):
    assert "holds no config.json; give a model's config.json, or the folder that holds it" in refusal(tmp_path)


def test_a_wrong_field_is_told_with_file_and_field(folder):
    (folder / "config.json").write_text(json.dumps(llama(hidden_size="wide")))
    assert refusal(folder).startswith(f"{folder / 'config.json'}: hidden_size: is 'wide'; write a whole number")


@pytest.mark.parametrize("text", ["[]", "{", "3", '{"architectures": "x"}'], ids=["list", "cut off", "number", "text"])
def test_what_is_no_configuration_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert str(tmp_path / "config.json") in refusal(tmp_path)


def test_only_the_header_is_read(tmp_path):
    """A file of a terabyte, most of it a hole: reading it would take minutes and all memory."""
    size = 2**40
    header = json.dumps({"a": {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}}).encode()
    file = tmp_path / "model.safetensors"
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + size)
    assert tensor_bytes(file) == {"a": size}
