"""A control plane with Kueue's custom resources, and with its controller where that is built."""

from __future__ import annotations

import base64
import copy
import http
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.controlplane.cluster import Program
from tests.controlplane.kueue_build import crds, documents, program
from tests.controlplane.plane import ControlPlane
from tests.ports import LOOPBACK, free_ports

KUEUE, NAMESPACE = "kueue", "kueue-system"
HOOKS, VISIBILITY = "kueue-webhook-service", "kueue-visibility-server"
APIS = "/apis/kueue.x-k8s.io/v1beta2"


class KueuePlane(ControlPlane):
    """An API server that knows Kueue's objects. Kueue itself runs after :meth:`start_kueue`."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(folder)
        pair = self._front_proxy.client("front-proxy-client")
        self._apiserver_flags = [f"--proxy-client-cert-file={pair.cert}", f"--proxy-client-key-file={pair.key}"]

    def start(self) -> None:
        """Start the API server, and create Kueue's custom resources."""
        super().start()
        for crd in crds():
            self.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        self._until(self._knows_kueue, "does not serve Kueue's objects", self._programs["kube-apiserver"])

    def start_kueue(self, more: Mapping[str, Any] | None = None) -> None:
        """Start Kueue for pods, with its webhooks and its visibility API. more: of its Configuration."""
        hooks, visibility, health, metrics = free_ports(4)
        self.api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self._service(HOOKS, hooks)
        self._service(VISIBILITY, visibility)
        self.api("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": "kueue-webhook-server-cert"}})
        self._install_conversion(hooks)
        self._install_hooks(hooks)
        config = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health}"},
            "metrics": {"bindAddress": f"{LOOPBACK}:{metrics}"},
            "webhook": {"host": LOOPBACK, "port": hooks, "certDir": str(self.folder / "kueue-certs")},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": HOOKS,
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "integrations": {"frameworks": ["pod"]},
            "visibilityServer": {"bindAddress": LOOPBACK, "bindPort": visibility},
            **(more or {}),
        }
        file = self.folder / "kueue.json"
        file.write_text(json.dumps(config, indent=2))
        command = [str(program()), f"--config={file}", f"--kubeconfig={self.kubeconfig}", "--zap-log-level=3"]
        self._programs[KUEUE] = started = Program(
            KUEUE, command, f"http://{LOOPBACK}:{health}/readyz", self.folder / "kueue.log", self._env
        )
        started.start()
        self._until(self._mounted, "wrote no certificate", started)
        self.wait_ready(120)
        self._install_visibility(visibility)
        self._until(self._knows_kueue, "does not serve Kueue's objects", self._programs["kube-apiserver"])
        self._until(self._gates_pods, "gates no pods", started)

    def stop(self) -> None:
        """End Kueue before the API server."""
        started = self._programs.get(KUEUE)
        if started:
            started.end()
            started.wait_ended()
        super().stop()

    def _knows_kueue(self) -> bool:
        kinds = (crd["spec"]["names"]["plural"] for crd in crds() if _serves_v1beta2(crd))
        return all(self.answer("GET", f"{APIS}/{kind}")[0] == http.HTTPStatus.OK for kind in kinds)

    def _service(self, name: str, port: int) -> None:
        """The API server calls webhooks and aggregated APIs by the names of Services, and follows an external name."""
        spec = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
        self.api("POST", f"/api/v1/namespaces/{NAMESPACE}/services", {"metadata": {"name": name}, "spec": spec})

    def _install_conversion(self, port: int) -> None:
        """Kueue puts its certificate's authority into these, and does not start without them."""
        for name in ("localqueues", "clusterqueues", "workloads", "cohorts", "multikueueclusters"):
            service = {"namespace": NAMESPACE, "name": HOOKS, "path": "/convert", "port": port}
            webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
            self.api(
                "PATCH",
                f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.kueue.x-k8s.io",
                {"spec": {"conversion": {"strategy": "Webhook", "webhook": webhook}}},
                content_type="application/merge-patch+json",
            )

    def _install_hooks(self, port: int) -> None:
        """Kueue's webhooks for its own objects and for pods, as it publishes them."""
        for document in documents("config/components/webhook/manifests.yaml"):
            config = copy.deepcopy(document)
            kind = config["kind"].removesuffix("WebhookConfiguration").lower()
            config["metadata"]["name"] = f"kueue-{kind}-webhook-configuration"
            config["webhooks"] = [each for each in config["webhooks"] if _is_needed(each)]
            for each in config["webhooks"]:
                each["clientConfig"]["service"] |= {"namespace": NAMESPACE, "name": HOOKS, "port": port}
                each["clientConfig"]["caBundle"] = ""
                if each["name"] in {"mpod.kb.io", "vpod.kb.io"}:
                    each["namespaceSelector"] = {"matchLabels": {"kueue": "yes"}}
            plural = f"{config['kind'].lower()}s"
            self.api("POST", f"/apis/admissionregistration.k8s.io/v1/{plural}", config)

    def _install_visibility(self, port: int) -> None:
        for document in documents("config/components/visibility/apiservice_v1beta2.yaml"):
            document["spec"]["service"] |= {"name": VISIBILITY, "namespace": NAMESPACE, "port": port}
            self.api("POST", "/apis/apiregistration.k8s.io/v1/apiservices", document)

    def _mounted(self) -> bool:
        """Do the kubelet's part: put the Secret's files where Kueue waits for them."""
        secret = self.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/kueue-webhook-server-cert")
        if "tls.crt" not in (secret.get("data") or {}):
            return False
        folder = self.folder / "kueue-certs"
        folder.mkdir(exist_ok=True)
        for name, text in secret["data"].items():
            (folder / name).write_bytes(base64.b64decode(text))
        return True

    def _gates_pods(self) -> bool:
        """Whether its webhook is called: a pod of a queue is gated."""
        name = "kueue-tried"
        self.answer("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {"kueue": "yes"}}})
        self._give_default_account(name)
        pod = {
            "metadata": {"name": "tried", "labels": {"kueue.x-k8s.io/queue-name": "none"}},
            "spec": {"containers": [{"name": "app", "image": "none"}]},
        }
        status, made = self.answer("POST", f"/api/v1/namespaces/{name}/pods?dryRun=All", pod)
        return status == http.HTTPStatus.CREATED and bool(made["spec"].get("schedulingGates"))


def _serves_v1beta2(crd: Mapping[str, Any]) -> bool:
    return any(each["name"] == "v1beta2" and each["served"] for each in crd["spec"]["versions"])


def _is_needed(webhook: Mapping[str, Any]) -> bool:
    groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
    kinds = {kind for rule in webhook["rules"] for kind in rule["resources"]}
    return groups == {"kueue.x-k8s.io"} or kinds <= {"pods"}
