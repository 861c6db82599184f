"""Settings that cannot be are refused before anything is touched, by the key, with what to write."""

from __future__ import annotations

import pytest

from cardwise.agent.settings import check_node_name, read_settings
from cardwise.errors import InputError, UserError

WRONG = [
    ("port = 70000", "port", "1 to 65535"),
    ("port = -1", "port", "1 to 65535"),
    ('host = ""', "host", "such as 0.0.0.0"),
    ('host = "not an address"', "host", "such as 0.0.0.0"),
    ('host = "a\\u0000b"', "host", "such as 0.0.0.0"),
    ("sample-every-s = inf", "sample-every-s", "above 0, at most"),
    ("sample-every-s = nan", "sample-every-s", "above 0, at most"),
    ("sample-every-s = 1e300", "sample-every-s", "above 0, at most"),
    ("mps-check-every-s = inf", "mps-check-every-s", "above 0, at most"),
    ("mps-check-every-s = 0", "mps-check-every-s", "above 0, at most"),
    ('reclaim = "all"', "reclaim", "one of best-effort, lent, off"),
    ("memory-every-s = 1", "memory-every-s", "0.05 to 0.5"),
    ("memory-every-s = nan", "memory-every-s", "0.05 to 0.5"),
    ("low-mark-pct = 90", "low-mark-pct", "below high-mark-pct"),
    ("high-mark-pct = 101", "low-mark-pct", "at most 100"),
    ("low-mark-pct = nan", "low-mark-pct", "above 0"),
    ("lend-most-pct = 51", "lend-most-pct", "0 to 50"),
    ("reclaim-grace-s = 0", "reclaim-grace-s", "above 0"),
    ("reclaim-grace-s = 1.5", "reclaim-grace-s", "a whole number"),
    ("reclaim-away-s = inf", "reclaim-away-s", "above 0"),
    ('isolation = "nonsense"', "isolation", "one of auto, whole"),
    ('isolation = ""', "isolation", "one of auto, whole"),
    ("slots-per-card = 49", "slots-per-card", "1 to 48"),
    ("slots-per-card = true", "slots-per-card", "is true; write a whole number"),
    ('resource = ""', "resource", "such as cardwise.dev/gpu"),
    ('resource = "gpu"', "resource", "such as cardwise.dev/gpu"),
    ('resource = "not valid !"', "resource", "such as cardwise.dev/gpu"),
    ('resource = "requests.a.dev/gpu"', "resource", "such as cardwise.dev/gpu"),
    ('resource = "node.kubernetes.io/gpu"', "resource", "such as cardwise.dev/gpu"),
    ('namespace = ""', "namespace", "such as cardwise-system"),
    ('namespace = "A_b"', "namespace", "such as cardwise-system"),
    ('state-folder = ""', "state-folder", "begins with /"),
    ('state-folder = "relative"', "state-folder", "begins with /"),
    ('state-folder = "/a\\u0000b"', "state-folder", "begins with /"),
    (f'cdi-folder = "/{"c" * 300}"', "cdi-folder", "255 between slashes"),
    (f'run-folder = "{"/run" * 2000}"', "run-folder", "at most 4095 bytes"),
    (f'kubelet-folder = "/{"k" * 100}"', "kubelet-folder", "a socket lies there"),
    (f'pod-resources-socket = "/{"k" * 110}"', "pod-resources-socket", "at most 107 bytes"),
    ("cdi-read-folders = []", "cdi-read-folders", "such as /etc/cdi"),
    ('cdi-read-folders = ["/etc/cdi", ""]', "cdi-read-folders", "begins with /"),
    ('model-folders = ["relative"]', "model-folders", "begins with /"),
    ('mps-control = ""', "mps-control", "nvidia-cuda-mps-control"),
    ('mps-control = "nvidia -d"', "mps-control", "nvidia-cuda-mps-control"),
]


def told(tmp_path, text):
    path = tmp_path / "agent.toml"
    path.write_text(text + "\n")
    return path


@pytest.mark.parametrize(("line", "key", "want"), WRONG, ids=[line[:40] for line, _, _ in WRONG])
def test_a_wrong_setting_is_refused_by_its_key_with_what_to_write(tmp_path, line, key, want):
    with pytest.raises(InputError) as refused:
        read_settings(told(tmp_path, line))
    assert refused.value.field == key
    assert want in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        "port = 0",
        'host = "::"',
        'host = "localhost"',
        'isolation = "mps-env"',
        'resource = "example.com/shared_GPU.2"',
        'mps-control = "/usr/bin/nvidia-cuda-mps-control"',
        "sample-every-s = 0.05",
        'model-folders = ["/models"]',
        "lend-most-pct = 0",
        'reclaim = "off"',
        "high-mark-pct = 100",
    ],
)
def test_a_setting_that_is_unusual_and_right_is_taken(tmp_path, line):
    assert read_settings(told(tmp_path, line))


def test_the_defaults_are_right():
    assert read_settings(None).isolation == "auto"


@pytest.mark.parametrize("name", ["", "../../x y", "Node", "a" * 254, "a\0b"])
def test_what_is_no_nodes_name_is_refused(name):
    with pytest.raises(UserError, match="kubectl get nodes"):
        check_node_name(name)


def test_a_nodes_name_may_have_dots():
    assert check_node_name("gpu-1.eu.example.com")
