"""A model as its files describe it: ``config.json``, and the headers of its safetensors files. Weights are never read.

A safetensors file begins with the length of its header, 8 bytes, little-endian, and the header, JSON: a tensor's name,
its number format and where its bytes lie. That is enough to weigh a model exactly. Source:
https://huggingface.co/docs/safetensors, "Format". Refuses a shard that is missing or cut off by name, and to look
anywhere but on this disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cardwise.core.capacity.families import ConfigError, shape_of
from cardwise.core.capacity.shape import ModelShape
from cardwise.errors import InputError
from cardwise.files import LONGEST_SEEN, decode_json, read_text, seen

WANT = "a model's config.json, or the folder that holds it"
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
MOST_HEADER_BYTES = 100_000_000
"""As the format's own reader has it."""
SHOWN = 8
"""Files that a message names, of many."""
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")


@dataclass(frozen=True, slots=True)
class Model:
    """A model's shape, and what its files weigh, where they are there.

    notes: what of them is not loaded, and why. repository: where engines find it, if that is known.
    """

    name: str
    shape: ModelShape
    weights_bytes: int | None = None
    notes: tuple[str, ...] = ()
    repository: str = ""


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def read_model(path: Path) -> Model:
    """A model from its folder or its ``config.json``. Raises InputError with the file and the field at fault."""
    if path.is_dir():
        config = path / CONFIG
        if not config.is_file():
            raise InputError(str(path), f"holds no {CONFIG}; give {WANT}")
        name = path.resolve().name
    else:
        config, name = path, path.resolve().parent.name if path.name == CONFIG else path.stem
    shape = shape_from(read_config(config), str(config))
    weights, notes = _weigh(path, shape) if path.is_dir() else (None, ())
    return Model(name, shape, weights, notes)


def read_config(path: Path) -> dict[str, Any]:
    """The content of a ``config.json``. Raises InputError if it is no JSON object."""
    try:
        return decode_json(read_text(path, WANT), dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(str(path), f"{error}; give {WANT}") from error


def shape_from(config: Mapping[str, object], where: str) -> ModelShape:
    """The shape of a configuration. Raises InputError that names the field at fault."""
    try:
        return shape_of(config)
    except ConfigError as error:
        raise InputError(where, error.reason, field=error.field) from error


# ---------------------------------------------------------------- safetensors


def _weigh(folder: Path, shape: ModelShape) -> tuple[int | None, tuple[str, ...]]:
    """Bytes of the tensors that an engine loads; None if the folder has no safetensors files."""
    files = _files(folder)
    if not files:
        return None, ("no safetensors files: weights are counted from the configuration",)
    sizes: dict[str, int] = {}
    for file in files:
        sizes |= tensor_bytes(file)
    beyond = {name: size for name, size in sizes.items() if _is_beyond(name, shape)}
    has_output = any(part.name == "output" for part in shape.parts)
    doubled_bytes = 0 if has_output else sizes.get("lm_head.weight", 0)
    notes = []
    if beyond:
        notes.append(f"{sum(beyond.values()):,} bytes predict further tokens and are not loaded unless asked for")
    if doubled_bytes:
        notes.append(f"{doubled_bytes:,} bytes are the embeddings once more, as the output: loaded once")
    return sum(sizes.values()) - sum(beyond.values()) - doubled_bytes, tuple(notes)


def _is_beyond(name: str, shape: ModelShape) -> bool:
    """Whether a tensor belongs to a layer after the last: DeepSeek stores there what predicts further tokens."""
    found = _LAYER.search(name)
    if found is None or shape.tower is not None:
        return False
    last = str(len(shape.layers) - 1)  # compared as text, for a name may have more digits than Python reads
    number = found[1].lstrip("0") or "0"
    return (len(number), number) > (len(last), last)


def _files(folder: Path) -> list[Path]:
    """The shards of the index, or the single file; all of them must be there."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / SINGLE
        if single.is_file():
            return [single]
        loose = sorted(each.name for each in folder.glob("*.safetensors"))
        if loose:
            raise InputError(str(folder), f"holds {_some(loose)} but no {INDEX}; add it, or leave them out")
        return []
    try:
        shards = sorted(set(decode_json(read_text(index, WANT), _Index).weight_map.values()))
    except msgspec.DecodeError as error:
        raise InputError(str(index), f"{error}; fetch it again") from error
    if any(Path(shard).name != shard for shard in shards):
        raise InputError(str(index), "names a file outside of its folder; fetch it again")
    missing = [shard for shard in shards if not _is_there(folder / shard)]
    if missing:
        raise InputError(str(folder), f"lacks {_some(missing)}, which {INDEX} names; fetch the model again")
    return [folder / shard for shard in shards]


def _is_there(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # no file system has a name so long
        return False


def _some(names: Sequence[str]) -> str:
    """A few of them, and how many more."""
    told = ", ".join(name if len(name) <= LONGEST_SEEN else seen(name) for name in names[:SHOWN])
    return told if len(names) <= SHOWN else f"{told} and {len(names) - SHOWN:,} more"


def tensor_bytes(file: Path) -> dict[str, int]:
    """Bytes by tensor of a safetensors file, from its header alone. Raises InputError if that is not whole."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(MOST_HEADER_BYTES, size - 8):
                raise InputError(str(file), "is cut off or no safetensors file; fetch it again")
            header = stream.read(length)
    except OSError as error:
        raise InputError(str(file), f"cannot be read ({error.strerror}); make it readable") from error
    try:
        entries = decode_json(header, dict[str, msgspec.Raw])
        tensors = {name: decode_json(bytes(raw), _Tensor) for name, raw in entries.items() if name != "__metadata__"}
    except msgspec.DecodeError as error:
        raise InputError(str(file), f"has a header that is not as the format says: {error}; fetch it again") from error
    sizes = {name: tensor.data_offsets[1] - tensor.data_offsets[0] for name, tensor in tensors.items()}
    end = max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    if min(sizes.values(), default=0) < 0 or 8 + length + end != size:
        raise InputError(str(file), f"is {size:,} bytes, {seen(8 + length + end)} in its header; fetch it again")
    if sum(sizes.values()) != end:  # the format allows neither holes nor bytes that are two tensors'
        raise InputError(str(file), f"has {end:,} bytes for tensors of {seen(sum(sizes.values()))}; fetch it again")
    return sizes
