"""The cluster of a reader who follows the docs: a real control plane, and all that the pages take for granted.

Of the chart's programs the scheduler and kube-scheduler really run, with the chart's settings, as the chart's accounts;
of all other pods, as of nodes, kubelets and the cluster's own scheduler, only what the API server shows is there.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

from cardwise.adapters import wire
from cardwise.adapters.node_cards import encode_cards, encode_lending
from tests.builders import card
from tests.charts.conftest import NAMESPACE, Release
from tests.charts.helm import helm_binary
from tests.controlplane.binaries import binary
from tests.controlplane.cluster import ApiError
from tests.controlplane.plane import ControlPlane
from tests.e2e.cardwise_plane import Program, wait_for
from tests.e2e.docs_blocks import ROOT
from tests.ports import free_ports

COMMAND_S, ENDS_S, WAIT_S = 120, 30, 90
STRATEGIC, MERGE = "application/strategic-merge-patch+json", "application/merge-patch+json"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cardwise"
EXTENDER = f"cardwise-extender.{NAMESPACE}.svc"
GPU_NODES, PLAIN_NODE, WHOLE_NODE = ("gpu-1", "gpu-2"), "cpu-1", "whole-1"
SLOTS, CARD_MIB = 16, 24576
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "statefulset-controller",
    "daemonset-controller",
    "disruption-controller",
    "endpointslice-controller",
    "serviceaccount-controller",
)
"""What pages look at; those that follow every kind of object cost more than all the rest."""


def until(what):
    """The first answer that is not empty, on a machine that may be busy with other tests."""
    return wait_for(what, WAIT_S)


class Kubelets:
    """Of all nodes, and the cluster's own scheduler: pods get a node, are ready at once, end when they are told to."""

    def __init__(self, plane):
        self.plane = plane
        self._end, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exc):
        self._end.set()
        self._thread.join(20)

    def _run(self):
        while not self._end.wait(0.3):
            with contextlib.suppress(OSError, ApiError):  # a busy API server is asked again
                for number, pod in enumerate(self.plane.api("GET", "/api/v1/pods")["items"]):
                    self._serve(pod, f"10.9.{number // 250}.{number % 250 + 1}")

    def _serve(self, pod, address):
        metadata, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self.plane.answer("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
        elif not spec.get("nodeName"):
            if spec["schedulerName"] == "default-scheduler":
                target = {"kind": "Node", "name": _node_of(spec)}
                binding = {"metadata": {"name": metadata["name"]}, "target": target}
                self.plane.answer("POST", f"{path}/binding", binding)
        elif not _is_ready(pod):
            ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
            ips = {"podIP": address, "podIPs": [{"ip": address}]}
            status = {"phase": "Running", "conditions": ready, **ips}
            body = {"metadata": {"uid": metadata["uid"]}, "status": status}
            self.plane.answer("PATCH", f"{path}/status", body, content_type=STRATEGIC)


def _node_of(spec):
    """Where a DaemonSet wants its pod; of the others those with whole cards go where NVIDIA's plugin is."""
    told = re.search(r'"metadata.name", "operator": "In", "values": \["([^"]+)"\]', json.dumps(spec))
    return told[1] if told else WHOLE_NODE if "nvidia.com/gpu" in json.dumps(spec) else PLAIN_NODE


def _is_ready(pod):
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


class DocsCluster:
    """Use as a context manager. folder: where the reader is; prometheus: the address of one.

    installed: whether the chart is, and its parts run.
    """

    def __init__(self, folder: Path, prometheus: str):
        self.folder, self.prometheus = folder, prometheus
        self.plane = ControlPlane(folder / "plane")
        self.installed = False
        self.user = folder / "user"
        self._stack = contextlib.ExitStack()
        self._hooks = []

    def __enter__(self):
        try:
            self._stack.enter_context(self.plane)
            self.plane.start_controller_manager(CONTROLLERS)
            for name in ("charts", "examples"):
                shutil.copytree(ROOT / name, self.user / name)
            self._programs()
            self.release = Release(self.plane, self.user)
            self._nodes()
            self._stack.enter_context(Kubelets(self.plane))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc):
        self._stack.close()

    def _programs(self):
        """What the reader has on the PATH, the right versions first."""
        (self.user / "bin").mkdir()
        own = {name: Path(sys.executable).with_name(name) for name in ("cardwise", "python")}
        for name, path in {"kubectl": binary("kubectl"), "helm": helm_binary(), **own}.items():
            (self.user / "bin" / name).symlink_to(path)

    def _nodes(self):
        """Two on which an agent has been at work, and one without cards; a label tells which are handed over."""
        for name in GPU_NODES:
            cards = [card(f"GPU-{name}-{i}", "A10", CARD_MIB) for i in range(2)]
            lending = encode_lending({each.uuid: 2048 for each in cards}, {})
            told = {wire.ANNOTATION_CARDS: encode_cards(cards), wire.ANNOTATION_PREEMPTIONS: "[]", **lending}
            self.plane.fake_node(
                name,
                extended={wire.OWN_COUNT: SLOTS * len(cards)},
                annotations=told,
                labels={"cardwise.dev/agent": "true"} if name != GPU_NODES[0] else {},
                lease=True,
            )
        self.plane.fake_node(PLAIN_NODE, lease=True)
        labels = {"nvidia.com/gpu.product": "NVIDIA-A10", "nvidia.com/gpu.memory": str(CARD_MIB)}
        self.plane.fake_node(WHOLE_NODE, extended={"nvidia.com/gpu": 4}, labels=labels, lease=True)

    # ---------------------------------------------------------------- commands

    def run(self, command, stays=False):
        """Exit code, stdout and stderr of a command in the reader's shell. stays: it does until Ctrl-C."""
        env = {
            "PATH": f"{self.user / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.user),
            "KUBECONFIG": str(self.plane.kubeconfig),
            "PROMETHEUS": self.prometheus,
        }
        shell = ["bash", "-o", "pipefail", "-c", f"exec {command}" if stays else command]
        if stays:
            return self._interrupted(shell, env)
        done = subprocess.run(
            shell,
            cwd=self.user,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def _interrupted(self, shell, env):
        """Ended by Ctrl-C once it has told its address."""
        out, err = self.user / "stays.out", self.user / "stays.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(shell, cwd=self.user, env=env, stdout=stdout, stderr=stderr)
        try:
            until(lambda: process.poll() is not None or "http://127.0.0.1" in out.read_text() + err.read_text())
        finally:
            process.send_signal(signal.SIGINT)
            code = process.wait(ENDS_S)
        return code, out.read_text(), err.read_text()

    def apply(self, manifest, namespace="default"):
        """What the API server says of it."""
        return self.plane.kubectl("apply", "-n", namespace, "-f", "-", stdin=manifest)

    # ---------------------------------------------------------------- the chart's programs

    def before_helm(self):
        """Helm finds what it wrote: it merges what is in the cluster with what it writes."""
        if self.installed:
            self._lead_to(self._hooks)

    def after_helm(self):
        """Have the parts that Helm installed run, and the API server call them where they are."""
        try:
            self._hooks = [each["clientConfig"] for each in self.plane.api("GET", HOOKS)["webhooks"]]
        except ApiError:
            self.installed = False
            return
        if not self.installed:
            self._start_scheduler()
            self._start_kube_scheduler()
        self.installed = True
        ca = base64.b64encode(self.plane.ca.read_bytes()).decode()
        here = {"url": f"https://localhost:{self._ports[1]}/admit", "caBundle": ca}
        self._lead_to([here] * len(self._hooks))
        until(self._admits)

    def _lead_to(self, targets):
        patch = [
            {"op": "replace", "path": f"/webhooks/{i}/clientConfig", "value": each} for i, each in enumerate(targets)
        ]
        self.plane.api("PATCH", HOOKS, patch, content_type="application/json-patch+json")

    def _admits(self):
        spec = {"containers": [{"name": "a", "image": "none", "resources": {"limits": {wire.USER_MEMORY: "1024"}}}]}
        body = {"metadata": {"name": "tried"}, "spec": spec}
        _, told = self.plane.answer("POST", "/api/v1/namespaces/default/pods?dryRun=All", body)
        return told.get("spec", {}).get("schedulerName") == wire.SCHEDULER_NAME

    def _start_scheduler(self):
        """With the chart's settings but for addresses, and certificates that hold for them."""
        self._ports = free_ports(2)
        serving = self.plane.authority.server("cardwise", [EXTENDER])
        settings = _replaced(
            self.release.config_map("cardwise-scheduler", "scheduler.toml"),
            {
                "port = 10260": f'host = "127.0.0.1"\nport = {self._ports[0]}',
                "webhook-port = 9443": f"webhook-port = {self._ports[1]}",
                "/etc/cardwise/tls/tls.crt": serving.cert,
                "/etc/cardwise/tls/tls.key": serving.key,
                "/etc/cardwise/tls/ca.crt": self.plane.ca,
            },
        )
        config = self.folder / "scheduler.toml"
        config.write_text(settings)
        account = self.release.account(self.release.scheduler)
        command = [sys.executable, "-m", "cardwise", "scheduler", "--config", config, "--kubeconfig", account]
        scheduler = Program(command, self.folder / "scheduler.log")
        scheduler.start()
        self._stack.callback(scheduler.kill)
        tls = ssl.create_default_context(cafile=str(self.plane.ca))

        def leads():
            with contextlib.suppress(OSError):
                url = f"https://localhost:{self._ports[0]}/readyz"
                return urllib.request.urlopen(url, context=tls, timeout=5).status == 200

        until(leads)

    def _start_kube_scheduler(self):
        client = self.plane.authority.client("cardwise-kube-scheduler")
        config = _replaced(
            self.release.config_map("cardwise-kube-scheduler", "config.yaml"),
            {
                f"https://{EXTENDER}:10260": f"https://localhost:{self._ports[0]}",
                "/etc/cardwise/client/ca.crt": self.plane.ca,
                "/etc/cardwise/client/tls.crt": client.cert,
                "/etc/cardwise/client/tls.key": client.key,
            },
        )
        account = {"kubeconfig": str(self.release.account(self.release.kube_scheduler))}
        self.plane.start_scheduler(f"{config}\nclientConnection: {json.dumps(account)}\n")

    # ---------------------------------------------------------------- what pages speak of

    def namespace(self, name):
        """Once it has the account that pods need."""
        if self.plane.answer("GET", f"/api/v1/namespaces/{name}")[0] != 200:
            self.plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        path = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        until(lambda: self.plane.answer("GET", path)[0] == 200)

    def workload(self, kind, namespace, name, limits=None, replicas=1):
        """A Deployment or StatefulSet that somebody has; the name of a pod of it, once that is ready."""
        self.namespace(namespace)
        container = {"name": "app", "image": "none", "resources": {"limits": limits or {}}}
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        self.plane.answer(
            "POST", f"/apis/apps/v1/namespaces/{namespace}/{kind}s", {"metadata": {"name": name}, "spec": spec}
        )
        return self.pod_of(namespace, name)

    def pod_of(self, namespace, name):
        pods = f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{name}"

        def ready():
            items = [each for each in self.plane.api("GET", pods)["items"] if _is_ready(each)]
            return next(
                (each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]), None
            )

        return until(ready)

    def bare_pod(self, namespace, name, limits, spec=None, **metadata):
        """The pod, whether it gets a node or waits."""
        self.namespace(namespace)
        container = {"name": "app", "image": "none", "resources": {"limits": limits}}
        body = {"metadata": {"name": name, **metadata}, "spec": {"containers": [container], **(spec or {})}}
        return self.plane.api("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def event(self, reason):
        """As a program of ours posts one."""
        about = {"kind": "Pod", "namespace": "default", "name": "some"}
        body = {
            "metadata": {"name": f"some.{reason.lower()}"},
            "involvedObject": about,
            "reason": reason,
            "type": "Normal",
        }
        self.plane.answer("POST", "/api/v1/namespaces/default/events", body)

    def patch(self, path, body, part=""):
        self.plane.api("PATCH", f"{path}{part}", body, content_type=MERGE)


def _replaced(text, here):
    for told, instead in here.items():
        assert text.count(told) == 1, told
        text = text.replace(told, str(instead))
    return text
