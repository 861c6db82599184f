"""A real control plane on loopback: no containers, no root rights, nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.controlplane.certs import Authority, KeyPair
from tests.controlplane.cluster import (
    APISERVER,
    CONTROLLER_MANAGER,
    ETCD,
    SCHEDULER,
    ApiError,
    Cluster,
    ControlPlaneError,
    KubectlError,
    base64_of,
)
from tests.ports import LOOPBACK, free_ports

__all__ = [
    "APISERVER",
    "CONTROLLER_MANAGER",
    "ETCD",
    "SCHEDULER",
    "ApiError",
    "ControlPlane",
    "ControlPlaneError",
    "KubectlError",
]

# Nodes of tests have no kubelet that renews a lease; the lifecycle controller would declare them dead.
WITHOUT_KUBELETS = ("*", "-node-lifecycle-controller", "-node-ipam-controller")


class ControlPlane(Cluster):
    """etcd and an API server with RBAC, and on request kube-scheduler and kube-controller-manager.

    ``folder`` keeps the logs after the end; without it a temporary folder is used and removed. ``apiserver_flags`` come
    after ours, so they win.
    """

    def __init__(self, folder: Path | None = None, *, apiserver_flags: Iterable[str] = ()) -> None:
        self._own_folder = folder is None
        super().__init__(folder or Path(tempfile.mkdtemp(prefix="cardwise-controlplane-")))
        self._apiserver_flags = list(apiserver_flags)
        self._front_proxy = Authority(self.folder / "certs" / "front-proxy")
        self.ca = self.authority.ca
        self._service_accounts = self.authority.client("service-accounts")
        etcd_port, peer_port, api_port = free_ports(3)
        self._etcd_url, self._peer_url = f"http://{LOOPBACK}:{etcd_port}", f"http://{LOOPBACK}:{peer_port}"
        self.url = f"https://{LOOPBACK}:{api_port}"
        self.kubeconfig = self._user_kubeconfig("admin", self.client)
        self._api_tls = self.tls

    def start(self) -> None:
        """Start etcd and the API server, and wait until pods can be created in the namespace ``default``."""
        self._add(
            ETCD,
            f"{self._etcd_url}/health",
            "--name=test",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={self._etcd_url}",
            f"--advertise-client-urls={self._etcd_url}",
            f"--listen-peer-urls={self._peer_url}",
            f"--initial-advertise-peer-urls={self._peer_url}",
            f"--initial-cluster=test={self._peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        serving = self.authority.server(APISERVER, ["kubernetes.default.svc"])
        self._add(
            APISERVER,
            f"{self.url}/readyz",
            f"--etcd-servers={self._etcd_url}",
            f"--bind-address={LOOPBACK}",
            f"--advertise-address={LOOPBACK}",
            f"--secure-port={urlsplit(self.url).port}",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.ca}",
            f"--requestheader-client-ca-file={self._front_proxy.ca}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={self._service_accounts.cert}",
            f"--service-account-signing-key-file={self._service_accounts.key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--allow-privileged=true",
            *self._apiserver_flags,
        )
        self.wait_ready()
        self._until(self._give_default_account, "did not make the namespace default", self._programs[APISERVER])

    def start_controller_manager(self, controllers: Sequence[str] = WITHOUT_KUBELETS) -> None:
        """Start kube-controller-manager, or start it anew with other controllers."""
        self._remove(CONTROLLER_MANAGER)
        self._start_component(
            CONTROLLER_MANAGER,
            f"--kubeconfig={self._component_kubeconfig(CONTROLLER_MANAGER)}",
            f"--controllers={','.join(controllers)}",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--root-ca-file={self.ca}",
            f"--service-account-private-key-file={self._service_accounts.key}",
        )

    def stop(self) -> None:
        """End all programs and remove their state; the logs stay where the caller named a folder."""
        super().stop()
        shutil.rmtree(self.folder if self._own_folder else self.folder / ETCD, ignore_errors=True)

    def user_kubeconfig(self, name: str, groups: Iterable[str] = ()) -> Path:
        """A kubeconfig with a client certificate for another user; a new user may do nothing until RBAC says so."""
        pair = self.authority.client(name, groups)
        return self._user_kubeconfig(pair.cert.stem, pair)

    def _component_kubeconfig(self, name: str) -> Path:
        path = self.folder / f"system-{name}.kubeconfig"
        return path if path.exists() else self.user_kubeconfig(f"system:{name}")

    def _user_kubeconfig(self, name: str, pair: KeyPair) -> Path:
        shown = {
            "client-certificate-data": base64_of(pair.cert.read_bytes()),
            "client-key-data": base64_of(pair.key.read_bytes()),
        }
        return self._write_kubeconfig(name, self.ca.read_bytes(), shown)
