"""What settings of our programs have in common: how they are read and refused, names in the cluster, where to listen.

Refuses to know what a program does with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from cardwise.errors import InputError
from cardwise.files import seen
from cardwise.settings_file import read_settings_file

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Faults: TypeAlias = Iterable[tuple[str, str]]
"""Keys whose values cannot be meant, and what to write instead."""
_SettingsT = TypeVar("_SettingsT")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def read_checked(
    path: Path | None, want: str, kind: type[_SettingsT], faults: Callable[[_SettingsT], Faults]
) -> _SettingsT:
    """Read and check a file; defaults without one. Raises InputError that names the key."""
    if path is None:
        return kind()
    settings = read_settings_file(path, want, kind)
    for key, fault in faults(settings):
        raise InputError(str(path), fault, field=key)
    return settings


def name_faults(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """By key, what the API server takes as no name of a namespace or a lease."""
    for key, name in names.items():
        if not _NAME.fullmatch(name):
            yield key, f"{seen(name)} is no name; write lower-case letters, digits and '-', such as cardwise-system"


def host_faults(host: str) -> Iterator[tuple[str, str]]:
    """A host that no resolver can be asked about; what it answers is seen when it is listened on."""
    if not _is_host(host):
        yield "host", f"{seen(host)} is no address to listen on; write 0.0.0.0 for all, or one of this machine's"


def _is_host(host: str) -> bool:
    try:
        return host.isprintable() and " " not in host and bool(host.encode("idna"))
    except UnicodeError:
        return False
