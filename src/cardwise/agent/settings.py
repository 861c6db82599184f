"""The agent's settings: one TOML file, read whole or refused with the key that is wrong.

Defaults serve a usual node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from cardwise.adapters import wire
from cardwise.core.card.isolation import AUTO, Step
from cardwise.core.card.watermark import MOST_LENT_SHARE
from cardwise.errors import InputError, UserError
from cardwise.files import seen
from cardwise.settings_file import read_settings_file

WANT = "the agent's settings in TOML (see cardwise agent --help)"

MOST_SLOTS = 48
"""Per card: what MPS lets into one card before CUDA 13.1."""
RECLAIM = ("best-effort", "lent", "off")
"""From whom memory is taken back: best-effort slices; these, on cards of which more was given than there is; nobody."""
MEMORY_EVERY_S = (0.05, 0.5)
"""What is seen later cannot be acted on within a second."""
ALL_PCT = 100
MOST_PORT, MOST_SECONDS = 65535, 3600
LONGEST_DOMAIN, LONGEST_PATH, LONGEST_NAME, LONGEST_SOCKET = 253, 4095, 255, 107
"""Bytes: of a DNS name, a path, a file's name in most file systems, a Unix socket's path."""

_ISOLATIONS = (AUTO, *(step.value for step in Step if step is not Step.SM_PARTITION))
"""Static partitions are not made by the agent yet."""
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_HOST = re.compile(r"[0-9A-Za-z:._%-]+")


class Settings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """What may differ between nodes.

    slots_per_card: how many containers may share a card at most. isolation: "auto", or a step of the ladder.
    kubelet_folder, pod_resources_socket: the kubelet's. state_folder: the journal and the MPS daemon's folders, on a
    disk that survives reboots for the first. model_folders: where models' weights lie. memory_every_s: between two
    looks at a card's memory; reclaim: from whom it is taken back. Marks, and what is lent at most: percent of a card.
    """

    namespace: str = "cardwise-system"
    resource: str = wire.OWN_COUNT
    slots_per_card: int = 16
    isolation: str = "auto"
    kubelet_folder: str = "/var/lib/kubelet/device-plugins"
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    state_folder: str = "/var/lib/cardwise"
    run_folder: str = "/run/cardwise"
    cdi_folder: str = "/var/run/cdi"
    cdi_read_folders: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    proc_folder: str = "/proc"
    cgroup_folder: str = "/sys/fs/cgroup"
    sys_folder: str = "/sys"
    mps_control: str = "nvidia-cuda-mps-control"
    model_folders: tuple[str, ...] = ()
    host: str = "0.0.0.0"  # noqa: S104 - Prometheus comes from another pod
    port: int = 10261
    sample_every_s: float = 1.0
    mps_check_every_s: float = 15.0
    memory_every_s: float = 0.25
    reclaim: str = "best-effort"
    high_mark_pct: float = 90.0
    low_mark_pct: float = 85.0
    lend_most_pct: float = 50.0
    reclaim_grace_s: int = 5
    reclaim_away_s: float = 600.0

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return Path(self.state_folder) / "journal.db"


def read_settings(path: Path | None) -> Settings:
    """Read and check the file; defaults without one. Raises InputError that names the key, and says what to write."""
    settings = Settings() if path is None else read_settings_file(path, WANT, Settings)
    for key, value, want in _wrong(settings):
        raise InputError(str(path), f"is {seen(value)}; write {want}", field=key)
    return settings


def check_node_name(name: str) -> str:
    """The name, if a node can be called that. Raises UserError."""
    if len(name) > LONGEST_DOMAIN or not _DOMAIN.fullmatch(name):
        raise UserError(f"--node: {seen(name)} is no name of a node; write it as kubectl get nodes shows it")
    return name


def _wrong(settings: Settings) -> Iterator[tuple[str, object, str]]:
    """Key, value, and what to write instead, of each setting that cannot be."""
    yield from _wrong_names(settings)
    if not 1 <= settings.slots_per_card <= MOST_SLOTS:
        yield "slots-per-card", settings.slots_per_card, f"1 to {MOST_SLOTS}"
    if not 0 <= settings.port <= MOST_PORT:
        yield "port", settings.port, f"1 to {MOST_PORT}, or 0 for any that is free"
    for key, seconds in (
        ("sample-every-s", settings.sample_every_s),
        ("mps-check-every-s", settings.mps_check_every_s),
        ("reclaim-grace-s", settings.reclaim_grace_s),
        ("reclaim-away-s", settings.reclaim_away_s),
    ):
        if not 0 < seconds <= MOST_SECONDS:  # not a number is in no range
            yield key, seconds, f"a number of seconds above 0, at most {MOST_SECONDS}"
    yield from _wrong_marks(settings)
    yield from _wrong_paths(settings)


def _wrong_marks(settings: Settings) -> Iterator[tuple[str, object, str]]:
    if settings.reclaim not in RECLAIM:
        yield "reclaim", settings.reclaim, f"one of {', '.join(RECLAIM)}"
    if not MEMORY_EVERY_S[0] <= settings.memory_every_s <= MEMORY_EVERY_S[1]:
        yield "memory-every-s", settings.memory_every_s, "{} to {}".format(*MEMORY_EVERY_S)
    if not 0 < settings.low_mark_pct < settings.high_mark_pct <= ALL_PCT:
        marks = f"{settings.low_mark_pct:g} and {settings.high_mark_pct:g}"
        yield "low-mark-pct", marks, "the low mark above 0 and below high-mark-pct, and that at most 100"
    if not 0 <= settings.lend_most_pct <= MOST_LENT_SHARE * ALL_PCT:
        yield "lend-most-pct", settings.lend_most_pct, f"0 to {MOST_LENT_SHARE * ALL_PCT:g}; 0: nothing is lent"


def _wrong_names(settings: Settings) -> Iterator[tuple[str, object, str]]:
    if not _LABEL.fullmatch(settings.namespace):
        yield "namespace", settings.namespace, "the namespace that cardwise is installed in, such as cardwise-system"
    if not _is_extended_resource(settings.resource):
        yield "resource", settings.resource, f"a domain of yours, a slash and a name, such as {wire.OWN_COUNT}"
    if settings.isolation not in _ISOLATIONS:
        yield "isolation", settings.isolation, f"one of {', '.join(_ISOLATIONS)}"
    if not _HOST.fullmatch(settings.host):
        yield "host", settings.host, "the address to listen on, such as 0.0.0.0 or ::"


def _is_extended_resource(name: str) -> bool:
    """Whether a kubelet takes it from a device plugin. Source: kubernetes pkg/apis/core/v1/helper, helpers.go."""
    domain, slash, rest = name.partition("/")
    return (
        bool(slash and _DOMAIN.fullmatch(domain) and _QUALIFIED.fullmatch(rest))
        and len("requests.") + len(domain) <= LONGEST_DOMAIN
        and not domain.startswith("requests.")
        and not f".{domain}".endswith(".kubernetes.io")
    )


def _wrong_paths(settings: Settings) -> Iterator[tuple[str, object, str]]:
    if not settings.cdi_read_folders:
        yield "cdi-read-folders", list(settings.cdi_read_folders), "the folders of CDI files, such as /etc/cdi"
    for field in msgspec.structs.fields(settings):
        if field.name.endswith(("_folder", "_folders", "_socket")):
            told = getattr(settings, field.name)
            for path in (told,) if isinstance(told, str) else told:
                if want := _wrong_path(path):
                    yield field.encode_name, path, want
    if "/" in (command := settings.mps_control) or not command:
        if want := _wrong_path(command):
            yield "mps-control", command, f"{want}, or nvidia-cuda-mps-control"
    elif not command.isprintable() or " " in command:
        yield "mps-control", command, "the program's name, such as nvidia-cuda-mps-control, or its path"
    yield from _long_sockets(settings)


def _wrong_path(path: str) -> str:
    """What to write instead of a path that cannot be one; empty if it can."""
    if not path.startswith("/") or "\0" in path:
        return "a path that begins with /"
    if len(os.fsencode(path)) > LONGEST_PATH or any(len(os.fsencode(part)) > LONGEST_NAME for part in path.split("/")):
        return f"a path of at most {LONGEST_PATH} bytes, {LONGEST_NAME} between slashes"
    return ""


def _long_sockets(settings: Settings) -> Iterator[tuple[str, object, str]]:
    """Sockets have short names in Linux."""
    room = LONGEST_SOCKET - len("/cardwise.sock")
    if len(os.fsencode(settings.kubelet_folder)) > room:
        yield "kubelet-folder", settings.kubelet_folder, f"a path of at most {room} bytes: a socket lies there"
    if len(os.fsencode(settings.pod_resources_socket)) > LONGEST_SOCKET:
        yield "pod-resources-socket", settings.pod_resources_socket, f"a path of at most {LONGEST_SOCKET} bytes"
