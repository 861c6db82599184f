"""The cluster that KUBECONFIG names, for tests, but only where its owner says that it is disposable.

Tests create nodes, and delete nodes and pods; the KUBECONFIG of an operator's shell may well name production. So a
cluster is used only if its namespace ``default`` carries the label below. Without it a control plane of our own is
used, and that is said; a KUBECONFIG that leads nowhere is an error. Refuses credentials that it cannot copy whole.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import http.client
import os
import ssl
import tempfile
import threading
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.cluster import FAKES, LABEL, NODE_LEASES, ApiError, Cluster, ControlPlaneError
from tests.controlplane.cluster import base64_of as packed
from tests.controlplane.plane import ControlPlane

DISPOSABLE = "disposable"
MARK = f"kubectl label namespace default {LABEL}={DISPOSABLE}"
RENEW_EVERY_S = 10.0
"""Well within the 40 s after which a cluster's node lifecycle controller gives a node up."""
OTHERWISE = "or unset KUBECONFIG for a control plane of our own"
CLUSTER_KEYS = {"server", "certificate-authority", "certificate-authority-data", "extensions"}
USER_KEYS = {"client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "extensions"}


class GivenClusterError(ControlPlaneError):
    """KUBECONFIG leads to no cluster that can be used: the message says why, and what to do."""


class UnmarkedError(GivenClusterError):
    """The cluster is there, but nobody says that it is disposable."""


class GivenCluster(Cluster):
    """Somebody's cluster: our kube-scheduler runs beside it, under a name of its own, as the kubeconfig's user.

    There is no object of this class for a cluster that is not marked.
    """

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        super().__init__(folder)
        cluster, user = _current(kubeconfig)
        self.url = cluster["server"].rstrip("/")
        ca, cert, key = (
            _content(entry, name, kubeconfig)
            for entry, name in (
                (cluster, "certificate-authority"),
                (user, "client-certificate"),
                (user, "client-key"),
            )
        )
        self._api_tls = ssl.create_default_context(cadata=ca.decode() if ca else None)
        self.ca = self._file("given-ca.crt", ca) if ca else None
        shown = {}
        if cert and key:
            shown |= {"client-certificate-data": packed(cert), "client-key-data": packed(key)}
            self._api_tls.load_cert_chain(self._file("given.crt", cert), self._file("given.key", key))
        if user.get("token"):
            shown["token"] = user["token"]
            self._api_headers["Authorization"] = f"Bearer {user['token']}"
        self.kubeconfig = self._write_kubeconfig("given", ca, shown)
        self._check_mark(kubeconfig)
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew_leases, daemon=True)

    def start(self) -> None:
        """Delete what an earlier run may have left, and keep the nodes of tests alive from now on."""
        self._clear_all()
        self._renewing.start()

    def start_scheduler(self, config: Mapping[str, Any] | str | None = None) -> None:
        """As in :class:`Cluster`, for pods that name one of its profiles: the others are the cluster's own."""
        told = yaml.safe_load(config) if isinstance(config, str) else config or {}
        names = [each.get("schedulerName", "default-scheduler") for each in told.get("profiles") or ({},)]
        if "default-scheduler" in names:
            raise ControlPlaneError(f"profiles {names}: the default scheduler is the cluster's own; name another")
        super().start_scheduler(config)

    def stop(self) -> None:
        """End our programs and delete all that tests made."""
        super().stop()
        self._ended.set()
        if self._renewing.is_alive():
            self._renewing.join()
        self._clear_all()

    def fake_node(self, name: str, **more: Any) -> dict[str, Any]:
        """As in :class:`Cluster`, with a lease, for a cluster deletes or taints nodes that seem dead."""
        return super().fake_node(name, **{**more, "lease": True})

    def _file(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path

    def _check_mark(self, source: Path) -> None:
        path = "/api/v1/namespaces/default"
        try:
            status, told = self.answer("GET", path)
        except (OSError, http.client.HTTPException) as error:
            raise GivenClusterError(
                f"KUBECONFIG={source}: no answer from {self.url}: {error}; start that cluster, {OTHERWISE}"
            ) from error
        if status != HTTPStatus.OK:
            words = told.get("message", told) if isinstance(told, dict) else told
            raise GivenClusterError(
                f"KUBECONFIG={source}: {self.url} answers {status} to GET {path}: {words}; "
                f"name a user who may administer that cluster, {OTHERWISE}"
            )
        if told["metadata"].get("labels", {}).get(LABEL) != DISPOSABLE:
            raise UnmarkedError(
                f"KUBECONFIG={source}: {self.url} is not marked as disposable and is left alone; to give it to the "
                f"tests, `{MARK}`: everything in `default` and all fake nodes will be deleted there"
            )

    def _clear_all(self) -> None:
        self.clear()
        self.api("DELETE", "/apis/coordination.k8s.io/v1/namespaces/default/leases")
        self.api("DELETE", f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations?{FAKES}")
        for each in self.api("GET", f"/api/v1/namespaces?{FAKES}")["items"]:
            self.api("DELETE", f"/api/v1/namespaces/{each['metadata']['name']}")

    def _renew_leases(self) -> None:
        """What kubelets would do."""
        while not self._ended.wait(RENEW_EVERY_S):
            # A lease may be gone by now; for all else the next round will do.
            with contextlib.suppress(OSError, http.client.HTTPException, ApiError):
                for lease in self.api("GET", f"{NODE_LEASES}?{FAKES}")["items"]:
                    spec = {"renewTime": f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}
                    path = f"{NODE_LEASES}/{lease['metadata']['name']}"
                    self.api("PATCH", path, {"spec": spec}, content_type="application/merge-patch+json")


@functools.cache
def given() -> tuple[Path | None, str]:
    """The kubeconfig of the cluster to use, None for our own, and a line that says so; empty without KUBECONFIG."""
    told = os.environ.get("KUBECONFIG")
    if not told:
        return None, ""
    path = Path(told).absolute()
    with tempfile.TemporaryDirectory() as folder:
        try:
            cluster = GivenCluster(Path(folder), path)
        except UnmarkedError as error:
            return None, f"{error}; now a control plane of our own is used"
    if os.environ.get("PYTEST_XDIST_WORKER"):
        raise GivenClusterError(f"KUBECONFIG={path}: a given cluster takes one test at a time; add -n 0, {OTHERWISE}")
    return path, f"KUBECONFIG={path}: the tests use {cluster.url}, which is marked as disposable"


def any_cluster(folder: Path) -> Cluster:
    """The given cluster where there is one that may be used, else a control plane of our own; not started."""
    kubeconfig, _ = given()
    return GivenCluster(folder, kubeconfig) if kubeconfig else ControlPlane(folder)


def _current(kubeconfig: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Cluster and user of the current context. Raises GivenClusterError for what could not be copied as it is."""
    try:
        told = yaml.safe_load(kubeconfig.read_text())
        contexts, clusters, users = (
            {each["name"]: each[kind] or {} for each in told.get(f"{kind}s") or ()}
            for kind in ("context", "cluster", "user")
        )
        context = contexts[told["current-context"]]
        cluster, user = clusters[context["cluster"]], users.get(context.get("user"), {})
        unread = sorted({*(cluster.keys() - CLUSTER_KEYS), *(user.keys() - USER_KEYS)})
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        flat = "`kubectl config view --raw --flatten --minify > one.kubeconfig`"
        raise GivenClusterError(
            f"KUBECONFIG={kubeconfig}: no cluster there: {error!r}; name one file with a current context ({flat}), "
            f"{OTHERWISE}"
        ) from error
    if unread or "server" not in cluster:
        raise GivenClusterError(
            f"KUBECONFIG={kubeconfig}: {', '.join(unread) or 'no server'}: here a cluster has a server and a "
            f"certificate authority, its user a client certificate or a token; write these, {OTHERWISE}"
        )
    return cluster, user


def _content(entry: Mapping[str, str], name: str, kubeconfig: Path) -> bytes | None:
    """Inline, or from a file whose path is relative to the kubeconfig."""
    try:
        if f"{name}-data" in entry:
            return base64.b64decode(entry[f"{name}-data"])
        return (kubeconfig.parent / entry[name]).read_bytes() if entry.get(name) else None
    except (OSError, ValueError) as error:
        raise GivenClusterError(f"KUBECONFIG={kubeconfig}: {name}: {error}; mend it, {OTHERWISE}") from error
