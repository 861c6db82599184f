"""What end-to-end tests need from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server on loopback, shared by all tests of a run: leave it running, with names of your own."""
    with ControlPlane(tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane
