"""Where manifests come from: files, folders, standard input or the example that comes along; and if they changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from cardwise.adapters.manifests import WANT, Manifests, read_manifests
from cardwise.errors import InputError, UserError
from cardwise.files import read_text

STDIN = "-"
STDIN_NAME = "standard input"
EXAMPLE = "services.yaml"
ENDINGS = (".yaml", ".yml", ".json")
Stamp = tuple[str, int, int]


@dataclass(slots=True)
class Sources:
    """paths: as the user gave them; none for the packaged example. Standard input is read once and kept."""

    paths: tuple[str, ...]
    _stdin: str = ""
    _stamps: list[Stamp] = field(default_factory=list)

    def read(self) -> Manifests:
        """All workloads as the files are now. Raises InputError or UserError."""
        if not self.paths:
            return read_manifests({f"(example) {EXAMPLE}": _example()})
        self._stamps = []  # also of a folder that holds nothing: it has not changed again until it holds something
        files = _files(self.paths)
        self._stamps = _stamps(files)
        texts = {STDIN_NAME if file == STDIN else str(file): self._text(file) for file in files}
        return read_manifests(texts)

    def changed(self) -> bool:
        """True if a file was written, came or went since the last :meth:`read`."""
        try:
            return _stamps(_files(self.paths)) != self._stamps
        except UserError:  # a folder went, or is empty: reading it says so
            return self._stamps != []

    def _text(self, file: Path | str) -> str:
        if isinstance(file, Path):
            return read_text(file, WANT)
        if not self._stdin:
            self._stdin = _read_stdin()
        return self._stdin


def _read_stdin() -> str:
    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InputError(STDIN_NAME, f"byte {exc.start} is not UTF-8; give {WANT}") from exc
    if not text.strip():
        raise InputError(STDIN_NAME, f"is empty; give {WANT}")
    return text


def _example() -> str:
    return (resources.files("cardwise.up") / "examples" / EXAMPLE).read_text(encoding="utf-8")


def _files(paths: tuple[str, ...]) -> list[Path | str]:
    """Each file once; a folder stands for the manifests in it, as with kubectl."""
    files: list[Path | str] = []
    for name in paths:
        path = Path(name)
        if name == STDIN:
            files.append(STDIN)
        elif path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.suffix in ENDINGS and each.is_file())
            if not inside:
                raise InputError(name, f"holds no {', '.join(ENDINGS)} file; give {WANT}")
            files += inside
        else:
            files.append(path)
    return list(dict.fromkeys(files))


def _stamps(files: list[Path | str]) -> list[Stamp]:
    return [_stamp(file) for file in files]


def _stamp(file: Path | str) -> Stamp:
    if not isinstance(file, Path):
        return (file, 0, 0)
    try:
        told = file.stat()
    except OSError:
        return (str(file), -1, -1)
    return (str(file), told.st_mtime_ns, told.st_size)
