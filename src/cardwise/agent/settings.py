"""The agent's settings: one TOML file, read whole or refused with the key that is wrong.

Defaults serve a usual node.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from cardwise.adapters import wire
from cardwise.errors import InputError
from cardwise.files import read_settings_file

WANT = "the agent's settings in TOML (see cardwise agent --help)"

MOST_SLOTS = 48
"""Per card: what MPS lets into one card before CUDA 13.1."""


class Settings(msgspec.Struct, forbid_unknown_fields=True, rename="kebab", frozen=True):
    """What may differ between nodes.

    slots_per_card: how many containers may share a card at most. isolation: "auto", or a step of the ladder.
    kubelet_folder, pod_resources_socket: the kubelet's. state_folder: the journal and the MPS daemon's folders, on a
    disk that survives reboots for the first. model_folders: where models' weights lie.
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


def read_settings(path: Path | None) -> Settings:
    """Read and check the file; defaults without one. Raises InputError that names the key."""
    settings = Settings() if path is None else read_settings_file(path, WANT, Settings)
    if not 1 <= settings.slots_per_card <= MOST_SLOTS:
        raise InputError(str(path), f"is {settings.slots_per_card}; write 1 to {MOST_SLOTS}", field="slots-per-card")
    for field, seconds in (
        ("sample-every-s", settings.sample_every_s),
        ("mps-check-every-s", settings.mps_check_every_s),
    ):
        if not seconds > 0:
            raise InputError(str(path), f"is {seconds}; write a number of seconds above 0", field=field)
    return settings
