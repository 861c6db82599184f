"""A control plane with the Prometheus Operator at work, and what it writes for a Prometheus.

The operator and Prometheus act as the accounts and by the roles that the operator publishes. Nobody starts a pod here:
the StatefulSet that the operator writes stays without any, and the Prometheus that reads its configuration is a process
beside the cluster. For that alone :meth:`Written.outside` changes what the operator wrote.
"""

from __future__ import annotations

import base64
import gzip
import http
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.charts.operator_build import PROMETHEUS_VERSION, crds, documents, programs
from tests.controlplane.cluster import Program
from tests.controlplane.plane import ControlPlane
from tests.ports import LOOPBACK, free_ports

OPERATOR = "prometheus-operator"
WATCHED = ("prometheuses", "podmonitors", "servicemonitors", "probes", "prometheusrules")
"""Definitions without which the operator does not work for a Prometheus."""
SPACE = "monitoring"
"""Where operator and Prometheus are."""
APIS = "/apis/monitoring.coreos.com/v1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
READY_S = 60
CERTS, RULES = "/etc/prometheus/certs", "/etc/prometheus/rules"
"""Where the operator's pods have what it wrote."""
KUBERNETES = "kubernetes_sd_configs"
RELOADED = {"SHARD": "0", "POD_NAME": "prometheus-0"}


@dataclass(frozen=True)
class Written:
    """What the operator wrote for one Prometheus. rules, assets: texts of rules and TLS files, by their path there."""

    settings: dict[str, Any]
    rules: dict[str, str]
    assets: dict[str, bytes]

    @property
    def jobs(self) -> dict[str, dict[str, Any]]:
        """How is scraped, by the monitor's ``namespace/name``."""
        named = {each["job_name"]: each for each in self.settings["scrape_configs"]}
        return {name.removeprefix("podMonitor/").removesuffix("/0"): job for name, job in named.items()}

    @property
    def groups(self) -> dict[str, list[dict[str, Any]]]:
        """The rules, by their group's name."""
        files = [yaml.load(text, yaml.CSafeLoader) for text in self.rules.values()]
        return {group["name"]: group["rules"] for told in files for group in told["groups"]}

    def outside(self, folder: Path, kubeconfig: Path) -> str:
        """The settings, for a Prometheus outside of the cluster, which has no pod: its files are in ``folder``.

        Changed are the two paths at which a pod mounts files; what its config-reloader would fill in from its
        environment; and the way to the API server: a pod has its account's token, where this one has ``kubeconfig``.
        Targets, relabelings, TLS and rules are the operator's.
        """
        for path, content in {**self.assets, **{path: text.encode() for path, text in self.rules.items()}}.items():
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        text = json.dumps(self.settings)
        for path in (CERTS, RULES):
            text = text.replace(f'"{path}/', f'"{folder}{path}/')
        for name, value in RELOADED.items():
            text = text.replace(f"$({name})", value)
        return yaml.safe_dump(led_by(kubeconfig, json.loads(text)))


class OperatorPlane(ControlPlane):
    """An API server that knows the operator's objects. The operator itself runs after :meth:`start_operator`."""

    def start(self) -> None:
        """Start the API server, and create the operator's custom resources."""
        super().start()
        for crd in crds(*WATCHED):
            self.api("POST", CRDS, crd)
        self._until(self._knows_kinds, "does not serve the operator's objects", self._programs["kube-apiserver"])

    def start_operator(self) -> None:
        """Start it, and make an account for a Prometheus, each with the rights that the operator publishes."""
        self.namespace(SPACE)
        for name in (OPERATOR, "prometheus"):
            role, binding = (
                documents(f"example/rbac/{name}/{name}-cluster-role{which}.yaml")[0] for which in ("", "-binding")
            )
            binding["subjects"] = [{**each, "namespace": SPACE} for each in binding["subjects"]]
            for kind, each in (("clusterroles", role), ("clusterrolebindings", binding)):
                self.api("POST", f"/apis/rbac.authorization.k8s.io/v1/{kind}", each)
        (port,) = free_ports(1)
        shown = self.authority.client(_account(OPERATOR))
        command = [
            str(programs() / "operator"),
            f"--apiserver={self.url}",
            f"--ca-file={self.ca}",
            f"--cert-file={shown.cert}",
            f"--key-file={shown.key}",
            f"--web.listen-address={LOOPBACK}:{port}",
        ]
        health = f"http://{LOOPBACK}:{port}/healthz"
        self._programs[OPERATOR] = started = Program(OPERATOR, command, health, self.folder / "operator.log", self._env)
        started.start()
        self.wait_ready()

    def stop(self) -> None:
        """End the operator before the API server."""
        started = self._programs.get(OPERATOR)
        if started:
            started.end()
            started.wait_ended()
        super().stop()

    def prometheus_kubeconfig(self) -> Path:
        """How a Prometheus outside of the cluster comes to the rights of its account."""
        return self.user_kubeconfig(_account("prometheus"))

    def prometheus(self, name: str, spec: dict[str, Any], space: str = SPACE) -> Written:
        """Create a Prometheus, wait until the operator has done its part, and read what that is."""
        path = f"{APIS}/namespaces/{space}/prometheuses"
        body = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": name}}
        usual = {"version": f"v{PROMETHEUS_VERSION}", "serviceAccountName": "prometheus"}
        self.api("POST", path, {**body, "spec": {**usual, **spec}})
        self._until(
            lambda: _reconciled(self.api("GET", f"{path}/{name}")),
            f"did not reconcile {space}/{name}",
            self._programs[OPERATOR],
            READY_S,
        )
        return self.written(name, space)

    def written(self, name: str, space: str = SPACE) -> Written:
        """What there is for a Prometheus now."""
        core = f"/api/v1/namespaces/{space}"
        packed = self.api("GET", f"{core}/secrets/prometheus-{name}")["data"]["prometheus.yaml.gz"]
        settings = yaml.load(gzip.decompress(base64.b64decode(packed)), yaml.CSafeLoader)
        maps = [each for each in self.api("GET", f"{core}/configmaps")["items"] if _is_of(each, name, "rulefiles")]
        secrets = [each for each in self.api("GET", f"{core}/secrets")["items"] if _is_of(each, name, "tls-assets")]
        rules = {
            f"{RULES}/{each['metadata']['name']}/{file}": text
            for each in maps
            for file, text in each.get("data", {}).items()
        }
        assets = {
            f"{CERTS}/{file}": base64.b64decode(raw) for each in secrets for file, raw in each.get("data", {}).items()
        }
        return Written(settings, rules, assets)

    def refused(self, space: str) -> dict[str, str]:
        """Why the operator takes none of a namespace's objects, as its events say: by the object's name."""
        events = self.api("GET", f"/api/v1/namespaces/{space}/events")["items"]
        told = [each for each in events if each["reason"] == "InvalidConfiguration"]
        return {each["involvedObject"]["name"]: each["message"] for each in told}

    def operator_complaints(self) -> list[str]:
        """Lines of its log that are errors, or say that it passed something over."""
        return [line for line in self.log(OPERATOR).splitlines() if re.search("level=error|skipping", line)]

    def _knows_kinds(self) -> bool:
        return all(self.answer("GET", f"{APIS}/{kind}")[0] == http.HTTPStatus.OK for kind in WATCHED)


def led_by(kubeconfig: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of Prometheus by which it finds its targets at the API server of a kubeconfig."""
    told = [
        {**job, KUBERNETES: [{**each, "kubeconfig_file": str(kubeconfig)} for each in job[KUBERNETES]]}
        for job in settings["scrape_configs"]
    ]
    return {**settings, "scrape_configs": told}


def _account(name: str) -> str:
    return f"system:serviceaccount:{SPACE}:{name}"


def _is_of(item: dict[str, Any], name: str, part: str) -> bool:
    return re.fullmatch(rf"prometheus-{re.escape(name)}-{part}-\d+", item["metadata"]["name"]) is not None


def _reconciled(made: dict[str, Any]) -> bool:
    told = {each["type"]: each for each in made.get("status", {}).get("conditions", ())}.get("Reconciled", {})
    return (told.get("status"), told.get("observedGeneration")) == ("True", made["metadata"]["generation"])
