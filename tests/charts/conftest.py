"""The chart as Helm installs it on a real API server; no kubelet, no network: the webhook is out of reach."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from tests.charts.helm import CHART, helm, set_flags
from tests.controlplane.given import given
from tests.controlplane.plane import ControlPlane, KubectlError

NAMESPACE = "cardwise-system"
IMAGE = {"image.repository": "example.test/cardwise"}
ENFORCED_WITHIN_S = 60
_AnswerT = TypeVar("_AnswerT")


def wait_for(what: Callable[[], _AnswerT], deadline_s: float = 60) -> _AnswerT:
    """The first answer that is not empty."""
    deadline = time.monotonic() + deadline_s
    while not (answer := what()):
        assert time.monotonic() < deadline, f"nothing after {deadline_s} s"
        time.sleep(0.1)
    return answer


@dataclass(frozen=True)
class Release:
    """The installed chart, and the users that its policies speak of."""

    plane: ControlPlane
    home: Path

    scheduler = f"system:serviceaccount:{NAMESPACE}:cardwise-scheduler"
    kube_scheduler = f"system:serviceaccount:{NAMESPACE}:cardwise-kube-scheduler"
    agent = f"system:serviceaccount:{NAMESPACE}:cardwise-agent"

    def helm(self, *args: str) -> str:
        """Helm as administrator of the cluster."""
        return helm(*args, home=self.home, kubeconfig=self.plane.kubeconfig)

    def account(self, user: str) -> Path:
        """Kubeconfig of a service account."""
        return self.plane.user_kubeconfig(user, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"])

    def as_agent_of(self, node: str) -> tuple[str, ...]:
        """Flags of kubectl: the agent's account, by its pod's token on a node; with all rights, for kubectl reads."""
        told = f"authentication.kubernetes.io/node-name={node}"
        return "--as", self.agent, "--as-group", "system:masters", "--as-user-extra", told

    def agent_pod_kubeconfig(self, node: str) -> Path:
        """Kubeconfig with the token of an agent's pod on a node: what the kubelet there gives it, and nothing more."""
        name = f"agent-of-{node}"
        spec = {
            "serviceAccountName": "cardwise-agent",
            "nodeName": node,
            "containers": [{"name": "a", "image": "none"}],
        }
        self.plane.api("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": {"name": name}, "spec": spec})
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={name}")
        return self._token_kubeconfig(name, *bound)

    def agent_account_kubeconfig(self) -> Path:
        """Kubeconfig with a token of the agent's account that was made for no pod."""
        return self._token_kubeconfig("agent-of-nowhere")

    def _token_kubeconfig(self, name: str, *flags: str) -> Path:
        token = self.plane.kubectl("create", "token", "cardwise-agent", "-n", NAMESPACE, *flags)
        config = yaml.safe_load(self.plane.kubeconfig.read_text())
        config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
        path = self.home / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
        return path

    def secret(self) -> dict[str, bytes]:
        """The certificate files, by name."""
        data = self.plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/cardwise-tls")["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    def config_map(self, name: str, key: str) -> str:
        """A text of a ConfigMap."""
        text: str = self.plane.api("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}")["data"][key]
        return text


@pytest.fixture(scope="session")
def helm_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder without anyone's Helm settings."""
    return tmp_path_factory.mktemp("helm")


@pytest.fixture(scope="session")
def render(helm_home: Path) -> Callable[..., list[dict[str, Any]]]:
    """The chart's objects for some values, as ``render(values)``."""

    def rendered(values: dict[str, Any] | None = None, release: str = "cardwise") -> list[dict[str, Any]]:
        version = ("--kube-version", "1.36.2")
        flags = [*version, "--namespace", NAMESPACE, *set_flags({**IMAGE, **(values or {})})]
        return [each for each in yaml.safe_load_all(helm("template", release, CHART, *flags, home=helm_home)) if each]

    return rendered


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory, helm_home: Path) -> Iterator[Release]:
    """The chart, installed, with its policies in force."""
    kubeconfig, _ = given()
    if kubeconfig:
        pytest.skip("signs certificates for the chart's accounts: the cluster of KUBECONFIG has its own authority")
    with ControlPlane(tmp_path_factory.mktemp("controlplane")) as plane:
        made = Release(plane, helm_home)
        flags = set_flags({**IMAGE, "webhook.timeoutSeconds": 2})
        made.helm("install", "cardwise", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *flags)
        for space in (NAMESPACE, "kube-system"):
            plane.kubectl("create", "serviceaccount", "default", "-n", space)
        wait_for(lambda: _in_force(made), ENFORCED_WITHIN_S)
        yield made


def _in_force(made: Release) -> bool:
    """Policies and webhooks are read by the API server a moment after they were written."""
    plane, agent = made.plane, made.as_agent_of("probe")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "probe"}}
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(node))
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "p", "namespace": NAMESPACE}}
    probes: Sequence[tuple[str, ...]] = (
        ("annotate", "node", "probe", "cardwise.dev/load=1", "--overwrite", "--dry-run=server"),
        ("run", "p", "--image=none", "--labels=cardwise.dev/bound=true", "--dry-run=server"),
        ("run", "p", "--image=none", "--annotations=cardwise.dev/class=x", "--dry-run=server"),
        ("label", "node", "probe", "a=b", "--dry-run=server", *agent),
        ("create", "-f", "-", "--dry-run=server", *agent),
    )
    return all(_refused(plane, *probe, stdin=yaml.safe_dump(lease)) for probe in probes)


def _refused(plane: ControlPlane, *command: str, stdin: str) -> bool:
    try:
        plane.kubectl(*command, stdin=stdin)
    except KubectlError:
        return True
    return False
