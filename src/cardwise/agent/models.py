"""Which models' weights lie on this node's disks: Hugging Face caches, and folders of models by name.

A model whose download is not complete does not count, nor one without weights: a tokenizer alone lies there, too.
Refuses to read weights: names and files are enough.
Source: huggingface_hub, "Understand caching": ``models--ORG--NAME/{blobs,refs,snapshots}``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from cardwise.files import decode_json

LOOK_S = 60.0
MOST_MODELS = 200
"""Told of a node: an annotation may take 256 KiB in all."""
_PREFIX = "models--"
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack", ".npz", ".engine", ".plan"}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


@dataclass(slots=True)
class ModelFolders:
    """Looks at most once a minute."""

    folders: Sequence[Path]
    now_s: Callable[[], float] = time.monotonic
    _found: frozenset[str] = frozenset()
    _looked_s: float = field(default=float("-inf"))

    def __call__(self) -> frozenset[str]:
        """Names of the models that are complete."""
        if self.now_s() - self._looked_s >= LOOK_S:
            found = sorted({name for folder in self.folders for name in models_in(folder)})
            self._found, self._looked_s = frozenset(found[:MOST_MODELS]), self.now_s()
        return self._found


def models_in(folder: Path) -> Iterable[str]:
    """Names of the models in one folder; nothing if it is absent or may not be read."""
    try:
        entries = [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return
    for entry in entries:
        if "," in entry.name:
            continue
        if not entry.name.startswith(_PREFIX):
            if (entry / "config.json").is_file():
                yield entry.name
        elif _is_complete(entry):
            yield entry.name.removeprefix(_PREFIX).replace("--", "/", 1)


def _is_complete(entry: Path) -> bool:
    if any(entry.glob("blobs/*.incomplete")):
        return False
    return any(map(_has_weights, entry.glob("snapshots/*")))


def _has_weights(snapshot: Path) -> bool:
    """Whether weights are there; where an index lists their shards, all of them."""
    if not any(path.suffix in _WEIGHTS for path in snapshot.rglob("*")):
        return False
    return all(map(_has_shards, snapshot.glob("*.index.json")))


def _has_shards(index: Path) -> bool:
    """Whether all files are there that an index lists; False if it cannot be read."""
    try:
        shards = set(decode_json(index.read_bytes(), _Index).weight_map.values())
    except (OSError, msgspec.DecodeError):
        return False
    return all((index.parent / shard).exists() for shard in shards)
