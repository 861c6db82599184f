"""cardwise on a real control plane: the scheduler as a process of its own, kube-scheduler that asks it, the webhook."""

from __future__ import annotations

import contextlib
import http
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from cardwise.adapters import wire
from cardwise.adapters.allocations import decode
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.node_cards import encode_cards
from cardwise.scheduler.webhook import admit
from tests.builders import card
from tests.controlplane.cluster import ANSWER_S, FAKE, FAKES, LABEL, ApiError, base64_of
from tests.controlplane.plane import ControlPlane
from tests.e2e.wire_cut import Forwarder
from tests.ports import free_ports

DEADLINE_S = 60.0
SLOTS_PER_CARD = 16


def wait_for(what, deadline_s=DEADLINE_S, every_s=0.05):
    """The first answer that is not empty."""
    deadline = time.monotonic() + deadline_s
    while not (answer := what()):
        assert time.monotonic() < deadline, f"nothing after {deadline_s} s"
        time.sleep(every_s)
    return answer


class Program:
    """A process of ours that can be killed, and started anew. log: of all its lives."""

    def __init__(self, command, log: Path):
        self._command, self._log = command, log
        self.process = None

    def start(self):
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self, how=signal.SIGKILL):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(20)
            self.process = None

    def log(self):
        return self._log.read_text()


class Replica(Program):
    """One scheduler process."""

    def __init__(self, plane, name, kubeconfig, tls, folder: Path, webhook_port=0):
        self.name = name
        (self.port,) = free_ports(1)
        settings = folder / f"{name}.toml"
        lines = [f'host = "127.0.0.1"\nport = {self.port}\nnamespace = "default"\n']
        if webhook_port:
            lines.append(f'webhook-port = {webhook_port}\ntls-cert-file = "{tls.cert}"\ntls-key-file = "{tls.key}"\n')
            lines.append(f'client-ca-file = "{plane.authority.ca}"\n')
        settings.write_text("".join(lines))
        self.scheme = "https" if webhook_port else "http"
        command = [
            *(sys.executable, "-m", "cardwise", "scheduler"),
            *("--config", str(settings), "--kubeconfig", str(kubeconfig), "--identity", name),
        ]
        super().__init__(command, folder / f"{name}.log")
        self._tls = plane.tls
        self.start()

    def get(self, path):
        url = f"{self.scheme}://127.0.0.1:{self.port}{path}"
        context = self._tls if self.scheme == "https" else None
        with urllib.request.urlopen(url, timeout=ANSWER_S, context=context) as answer:  # noqa: S310 - ours, on loopback
            return answer.read().decode()

    def ready(self):
        try:
            return self.get("/readyz") == "ok\n"
        except (OSError, urllib.error.URLError):
            return False

    def state(self):
        return json.loads(self.get("/state"))


class Cardwise:
    """A cluster with cardwise on it. Use as a context manager; ``replicas`` schedulers stand behind a Service.

    ``plane``: the cluster, not started; a control plane of our own where none is told. ``webhook``: whether pods are
    sent to the webhook; where not, :meth:`pod` writes them as the webhook would have.
    """

    def __init__(self, folder: Path, replicas=1, plane=None):
        self.folder, self._count = folder, replicas
        self.plane = plane or ControlPlane(folder / "plane")
        self.webhook = False
        self.replicas = []
        self._stack = contextlib.ExitStack()
        self.api_wire = Forwarder(self._api_port)
        self.service = Forwarder(self._ready_port)

    def __enter__(self):
        try:
            self._stack.enter_context(self.plane)
            self._stack.enter_context(self.api_wire)
            self._stack.enter_context(self.service)
            tls = self.plane.authority.server("cardwise")
            kubeconfig = self._through_wire()
            (webhook_port,) = free_ports(1)
            for i in range(self._count):
                name = f"replica-{i}"
                port = webhook_port if not i and self._count == 1 else 0
                self.replicas.append(Replica(self.plane, name, kubeconfig, tls, self.folder, port))
            wait_for(lambda: any(replica.ready() for replica in self.replicas))
            if self._count == 1:
                self._install_webhook(webhook_port)
            self.start_kube_scheduler()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc):
        for replica in self.replicas:
            replica.kill()
        self._stack.close()

    # ---------------------------------------------------------------- parts

    @property
    def leader(self):
        return wait_for(lambda: next((each for each in self.replicas if each.process and each.ready()), None))

    def _api_port(self):
        return urlsplit(self.plane.url).port

    def _ready_port(self):
        return next((each.port for each in self.replicas if each.process and each.ready()), None)

    def _through_wire(self):
        if not self.plane.on_loopback:
            return self.plane.kubeconfig
        config = json.loads(self.plane.kubeconfig.read_text())
        server = urlsplit(self.plane.url)
        through = server._replace(netloc=f"{server.hostname}:{self.api_wire.port}")
        config["clusters"][0]["cluster"]["server"] = through.geturl()
        path = self.folder / "through-wire.kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _install_webhook(self, port):
        hook = {
            "name": "pods.cardwise.dev",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,  # the most that there is: a scheduler that stalls for seconds refuses nothing
            "clientConfig": {
                "url": f"https://127.0.0.1:{port}/admit",
                "caBundle": base64_of(self.plane.authority.ca.read_bytes()),
            },
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        }
        body = {"metadata": {"name": "cardwise", "labels": {LABEL: FAKE}}, "webhooks": [hook]}
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
        self.plane.api("POST", path, body)
        told = wait_for(self._tried)
        self.webhook = told == wire.SCHEDULER_NAME
        if not self.webhook:
            assert not isinstance(self.plane, ControlPlane), told
            self.plane.api("DELETE", f"{path}/cardwise")

    def _tried(self):
        """What the API server makes of a pod with an ask: the scheduler's name, or why it cannot call the webhook.

        Only a call tells: the address of kind's API server is loopback, and yet another machine's. Nothing until the
        API server has heard of the webhook.
        """
        spec = {"containers": [_container("app", {wire.GPU: 1})]}
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        status, told = self.plane.answer("POST", path, {"metadata": {"name": "tried"}, "spec": spec})
        if status == http.HTTPStatus.INTERNAL_SERVER_ERROR:
            return told["message"]
        return told["spec"]["schedulerName"] == wire.SCHEDULER_NAME and wire.SCHEDULER_NAME

    def start_kube_scheduler(self):
        """Start it, or start it anew, with cardwise as its extender."""
        names = [(wire.OWN_COUNT, False), (wire.OWN_MEMORY, True), (wire.OWN_CORES, True), (wire.OWN_MEMORY_PCT, True)]
        client = self.plane.authority.client("kube-scheduler-extender-client")
        files = {"caFile": str(self.plane.authority.ca), "certFile": str(client.cert), "keyFile": str(client.key)}
        tls = {"enableHTTPS": True, "tlsConfig": files} if self._count == 1 else {}
        extender = {
            "urlPrefix": f"{'https' if tls else 'http'}://127.0.0.1:{self.service.port}",
            "filterVerb": "filter",
            "prioritizeVerb": "prioritize",
            "bindVerb": "bind",
            "weight": 10,
            "httpTimeout": "5s",
            "nodeCacheCapable": True,
            "managedResources": [{"name": name, "ignoredByScheduler": ignored} for name, ignored in names],
            **tls,
        }
        self.plane.start_scheduler({**_profile("cardwise"), "extenders": [extender]})

    def start_plain_scheduler(self):
        """The same kube-scheduler without cardwise, for pods of the scheduler named ``plain``."""
        self.plane.start_scheduler(_profile("plain"))

    # ---------------------------------------------------------------- objects

    def node(self, name, *cards, **more):
        """A node whose agent reports these cards (default: one A10 of 24 GiB)."""
        specs = list(cards) or [card()]
        named = [card(spec.uuid or f"{name}-{i}", spec.model, spec.memory_mib) for i, spec in enumerate(specs)]
        self.plane.fake_node(
            name,
            extended={wire.OWN_COUNT: SLOTS_PER_CARD * len(named)},
            annotations={wire.ANNOTATION_CARDS: encode_cards(named)},
            **more,
        )
        wait_for(lambda: name in {each["name"] for each in self.leader.state()["nodes"]})

    def report(self, name, *cards):
        """The node's agent reports these cards from now on."""
        self.annotate("nodes", name, {wire.ANNOTATION_CARDS: encode_cards(cards)})

    def annotate(self, kind, name, annotations):
        self.plane.api(
            "PATCH",
            f"/api/v1/{kind}/{name}",
            {"metadata": {"annotations": annotations}},
            content_type="application/merge-patch+json",
        )

    def pod(self, name, limits=None, namespace="default", *, containers=None, inits=(), **more):
        """Create a pod; by default one container that asks for 4096 MiB and 20 %."""
        if limits is None:
            limits = {wire.GPU: 1, wire.USER_MEMORY: 4096, wire.USER_CORES: 20}
        told = containers or {"app": limits}
        spec = {"containers": [_container(each, asked) for each, asked in told.items()], **more.pop("spec", {})}
        spec["initContainers"] = [{**_container(each, asked), **extra} for each, asked, extra in inits]
        body = {"metadata": {"name": name, **more}, "spec": spec}
        if not self.webhook:
            _apply(admit(msgspec.convert(body, Pod), body), body)
        return self.plane.api("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def owner(self, name):
        """An owner for pods to name: a real one, for a cluster collects pods whose owner it does not find."""
        app = {"app": name}
        template = {"metadata": {"labels": app}, "spec": {"containers": [_container("app", {})]}}
        spec = {"replicas": 0, "selector": {"matchLabels": app}, "template": template}
        made = self.plane.api(
            "POST", "/apis/apps/v1/namespaces/default/deployments", {"metadata": {"name": name}, "spec": spec}
        )
        uid = made["metadata"]["uid"]
        return {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": True}

    def get(self, name, namespace="default"):
        return self.plane.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    def delete(self, name, namespace="default"):
        body = {"gracePeriodSeconds": 0}
        self.plane.api("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    def delete_all(self):
        fakes = {each["metadata"]["name"] for each in self.plane.api("GET", f"/api/v1/nodes?{FAKES}")["items"]}
        self.plane.clear()
        wait_for(lambda: fakes.isdisjoint(each["name"] for each in self.leader.state()["nodes"]))

    def bound(self, name, deadline_s=DEADLINE_S):
        """The pod's allocation, once it is bound."""
        pod = wait_for(lambda: (p := self.get(name)) and p["spec"].get("nodeName") and p, deadline_s)
        return decode(pod["metadata"]["annotations"][wire.ANNOTATION_ALLOC])

    def is_bound(self, name):
        return bool(self.get(name)["spec"].get("nodeName"))

    def waits_for(self, name, why):
        """Wait until kube-scheduler says this of the pod. Of its first try it may say that the extender was late."""
        try:
            wait_for(lambda: any(why in text for text in self.events(name, "FailedScheduling")))
        except AssertionError:
            pytest.fail(f"never {why!r}: {self.events(name, 'FailedScheduling')}")

    def events(self, name, reason):
        items = self.plane.api("GET", "/api/v1/namespaces/default/events")["items"]
        mine = [each for each in items if each["involvedObject"]["name"] == name and each["reason"] == reason]
        return [each["message"] for each in mine]

    def used_mib(self):
        """What the leader's ledger counts on every card."""
        state = self.leader.state()
        return sum(c["memory_total_mib"] - c["memory_free_mib"] for node in state["nodes"] for c in node["cards"])

    def told_mib(self):
        """What the pods' own annotations say."""
        pods = self.plane.api("GET", "/api/v1/namespaces/default/pods")["items"]
        texts = [pod["metadata"].get("annotations", {}).get(wire.ANNOTATION_ALLOC) for pod in pods]
        return sum(share.memory_mib for text in texts if text for share in decode(text).shares)

    def denied(self, *args, **kwargs):
        """The API server's words for a pod that is refused."""
        try:
            self.pod(*args, **kwargs)
        except ApiError as error:
            return str(error)
        raise AssertionError("the pod was admitted")


def _profile(name):
    disabled = [{"name": "NodeResourcesFit"}, {"name": "NodeResourcesBalancedAllocation"}]
    return {
        "percentageOfNodesToScore": 100,
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": name, "plugins": {"score": {"disabled": disabled}}}],
    }


def _apply(patch, body):
    """A JSON patch that only adds."""
    for change in patch:
        *way, last = change["path"].strip("/").split("/")
        at = body
        for step in way:
            at = at[int(step) if isinstance(at, list) else step]
        at[last] = change["value"]


def _container(name, limits):
    return {"name": name, "image": "none", "resources": {"limits": {key: str(value) for key, value in limits.items()}}}
