"""What end-to-end tests need from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.controlplane.given import GivenClusterError, given
from tests.controlplane.plane import ControlPlane


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say which cluster KUBECONFIG gives, or why not, whatever else is quiet."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(session.config, "workerinput"):  # a worker of pytest-xdist: its fixtures ask
        return
    try:
        _, said = given()
    except GivenClusterError as error:
        raise pytest.UsageError(str(error)) from error
    if said:
        reporter.write_line(said)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd and an API server on loopback, shared by all tests of a run: leave it running, with names of your own."""
    kubeconfig, _ = given()
    if kubeconfig:
        pytest.skip("starts and ends its own API server, etcd and schedulers: the cluster of KUBECONFIG is given as is")
    with ControlPlane(tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane
