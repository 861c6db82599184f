"""What tests do with an API server, whoever started it: requests, kubectl, nodes, and programs of ours beside it."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import functools
import http.client
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from tests.controlplane.binaries import binary
from tests.controlplane.certs import Authority
from tests.ports import LOOPBACK, free_ports

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 5.0
KUBECTL_DEADLINE_S = 60.0
POLL_S = 0.05
PROBE_TIMEOUT_S = 5.0
ANSWER_S = 60.0
"""For an answer of the API server: a busy machine stalls it, or etcd, for seconds."""
LOG_TAIL = 3000
LEASH = Path(__file__).with_name("leash.py")

ETCD = "etcd"
APISERVER = "kube-apiserver"
SCHEDULER = "kube-scheduler"
CONTROLLER_MANAGER = "kube-controller-manager"
STOP_ORDER = ((CONTROLLER_MANAGER, SCHEDULER), (APISERVER,), (ETCD,))
"""Clients before servers, so that nobody waits for an answer from a dead one."""

LABEL, FAKE = "cardwise.dev/e2e", "fake"
"""On all that tests create outside of the namespace ``default``: a cleanup deletes by it, and so nothing else."""
FAKES = f"labelSelector={quote(f'{LABEL}={FAKE}', safe='')}"
NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class ControlPlaneError(RuntimeError):
    """A part of the control plane did not do what was asked: the message carries its last words."""


class KubectlError(ControlPlaneError):
    """``kubectl`` ended with an error: ``stderr`` says which."""

    def __init__(self, command: Sequence[str], stderr: str) -> None:
        self.stderr = stderr
        super().__init__(f"kubectl {' '.join(command)}: {stderr.strip()}")


class ApiError(ControlPlaneError):
    """The API server refused a request: ``status`` is the HTTP code, ``answer`` what it sent."""

    def __init__(self, request: str, status: int, answer: Any) -> None:
        self.status = status
        self.answer = answer
        words = answer.get("message", answer) if isinstance(answer, dict) else answer
        super().__init__(f"{request}: {status}: {words}")


@dataclass
class Program:
    """One process of the control plane: how it is started, how it shows that it is ready."""

    name: str
    command: list[str]
    health: str
    log: Path
    env: Mapping[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        leash = [sys.executable, "-I", "-S", str(LEASH), str(os.getpid())]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*leash, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env=self.env,
                start_new_session=True,
            )

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process:
            self.process.send_signal(how)

    def wait_ended(self, deadline_s: float = STOP_DEADLINE_S) -> None:
        if self.process:
            try:
                self.process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def last_words(self) -> str:
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"the end of {self.log}:\n{text[-LOG_TAIL:].strip() or '(empty)'}"


class Cluster:
    """An API server and the programs of ours that talk to it.

    ``authority`` and ``client`` are ours, and so is ``tls``, which shows the client: they are for the programs beside
    the API server. ``ca`` and ``kubeconfig`` are for the API server itself.
    """

    url: str
    ca: Path | None
    kubeconfig: Path
    _api_tls: ssl.SSLContext

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: dict[str, Program] = {}
        self._env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder)}
        self._api_headers: dict[str, str] = {}
        self.authority = Authority(folder / "certs")
        self.client = self.authority.client("admin", ["system:masters"])
        self.tls = ssl.create_default_context(cafile=str(self.authority.ca))
        self.tls.load_cert_chain(self.client.cert, self.client.key)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def on_loopback(self) -> bool:
        """Whether the API server has a port of this machine. It may be in a container, where loopback is another."""
        return urlsplit(self.url).hostname in {LOOPBACK, "localhost"}

    def start(self) -> None:
        """Make the cluster ready for tests."""
        raise NotImplementedError

    def start_scheduler(self, config: Mapping[str, Any] | str | None = None) -> None:
        """Start kube-scheduler, or start it anew with another configuration.

        ``config`` is a KubeSchedulerConfiguration, as an object or as JSON or block-style YAML text. What it does not
        say of kind, kubeconfig and leader election is filled in.
        """
        self._remove(SCHEDULER)
        file = self.folder / "scheduler.yaml"
        file.write_text(_scheduler_config(config, str(self._component_kubeconfig(SCHEDULER))))
        self._start_component(SCHEDULER, f"--config={file}")

    def kill(self, name: str) -> None:
        """End a program as a crash would, at once; its state on disk stays for :meth:`restart`."""
        program = self._programs[name]
        program.end(signal.SIGKILL)
        program.wait_ended()

    def restart(self, name: str, *, wait: bool = True) -> None:
        """Start a program again as it was started before, ending it first where it still runs, and wait."""
        program = self._programs[name]
        program.end()
        program.wait_ended()
        program.start()
        if wait:
            self.wait_ready()

    def stop(self) -> None:
        """End all programs that run beside the API server, and it itself where it is ours."""
        for stage in STOP_ORDER:
            programs = [self._programs[name] for name in stage if name in self._programs]
            for program in programs:
                program.end()
            for program in programs:
                program.wait_ended()

    def running(self) -> dict[str, int]:
        """The process id of each program that was started and not ended by us."""
        return {name: program.process.pid for name, program in self._programs.items() if program.process}

    def log(self, name: str) -> str:
        """All that a program has written so far."""
        return self._programs[name].log.read_text(errors="replace")

    def wait_ready(self, deadline_s: float = START_DEADLINE_S) -> None:
        """Wait until every program that runs says that it is ready; name the one that does not, with its log."""
        for program in list(self._programs.values()):
            if program.process:
                self._until(functools.partial(self._healthy, program), "is not ready", program, deadline_s)

    def kubectl(self, *args: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What ``kubectl`` prints, as administrator or as the user of another kubeconfig."""
        done = subprocess.run(
            [binary("kubectl"), *args],
            input=stdin or "",
            env={**self._env, "KUBECONFIG": str(kubeconfig or self.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=KUBECTL_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            raise KubectlError(args, done.stderr)
        return done.stdout

    def api(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """The API server's answer to one request as administrator, decoded."""
        status, answer = self.answer(method, path, body, content_type=content_type)
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(f"{method} {path}", status, answer)
        return answer

    def answer(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """The HTTP code and the answer to one request as administrator, whether good or not."""
        headers = {"Content-Type": content_type, **self._api_headers}
        payload = None if body is None else json.dumps(body)
        status, raw = _send(method, self.url + path, self._api_tls, payload, headers, timeout_s=ANSWER_S)
        return status, _decoded(raw)

    def namespace(self, name: str) -> str:
        """Create a namespace in which pods can be created without the controller manager."""
        self.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": {LABEL: FAKE}}})
        self._give_default_account(name)
        return name

    def fake_node(
        self,
        name: str,
        *,
        cpu: str | int = "32",
        memory: str = "128Gi",
        extended: Mapping[str, str | int] | None = None,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        lease: bool = False,
    ) -> dict[str, Any]:
        """Create a node that is ready for the scheduler, though no machine stands behind it."""
        resources = {"cpu": cpu, "memory": memory, "pods": 110, "ephemeral-storage": "1Ti", **(extended or {})}
        amounts = {resource: str(amount) for resource, amount in resources.items()}
        now = dt.datetime.now(dt.UTC)
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "a node of a test",
            "lastHeartbeatTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
            "lastTransitionTime": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        }
        usual = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            LABEL: FAKE,
        }
        node = {
            "metadata": {"name": name, "labels": {**usual, **(labels or {})}, "annotations": dict(annotations or {})},
            "status": {"capacity": amounts, "allocatable": amounts, "conditions": [ready]},
        }
        self.api("POST", "/api/v1/nodes", node)
        if lease:
            spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": f"{now:%Y-%m-%dT%H:%M:%S.%fZ}"}
            self.api("POST", NODE_LEASES, {"metadata": {"name": name, "labels": {LABEL: FAKE}}, "spec": spec})
        # Admission taints every new node as not ready; nothing here would take the taint off again.
        untaint = {"spec": {"taints": None}}
        made: dict[str, Any] = self.api(
            "PATCH", f"/api/v1/nodes/{name}", untaint, content_type="application/merge-patch+json"
        )
        return made

    def clear(self) -> None:
        """Delete the fake nodes, and the pods, Deployments and events of the namespace ``default``."""
        self.api("DELETE", "/apis/apps/v1/namespaces/default/deployments")
        self.api("DELETE", "/api/v1/namespaces/default/pods", {"gracePeriodSeconds": 0})
        self.api("DELETE", "/api/v1/namespaces/default/events")
        self.api("DELETE", f"/api/v1/nodes?{FAKES}")
        self.api("DELETE", f"{NODE_LEASES}?{FAKES}")

    def _add(self, name: str, health: str, *flags: str) -> None:
        command = [str(binary(name)), *flags]
        program = Program(name, command, health, self.folder / f"{name}.log", self._env)
        self._programs[name] = program
        program.start()

    def _remove(self, name: str) -> None:
        program = self._programs.pop(name, None)
        if program:
            program.end()
            program.wait_ended()

    def _start_component(self, name: str, *flags: str) -> None:
        """Start a client of the API server that serves its health and metrics; forget it where it fails."""
        (port,) = free_ports(1)
        serving = self.authority.server(name)
        kubeconfig = self._component_kubeconfig(name)
        self._add(
            name,
            f"https://{LOOPBACK}:{port}/healthz",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--tls-cert-file={serving.cert}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority.ca}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            *flags,
        )
        try:
            self.wait_ready()
        except ControlPlaneError:
            self._remove(name)
            raise

    def _give_default_account(self, namespace: str = "default") -> bool:
        """Make the account that pods need; the controller manager does it where it runs."""
        try:
            accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
            self.api("POST", accounts, {"metadata": {"name": "default"}})
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return False
            if error.status != http.HTTPStatus.CONFLICT:
                raise
        return True

    def _component_kubeconfig(self, _name: str) -> Path:
        """As whom a program beside the API server acts."""
        return self.kubeconfig

    def _write_kubeconfig(self, name: str, ca: bytes | None, user: Mapping[str, str]) -> Path:
        trusted = {"certificate-authority-data": base64_of(ca)} if ca else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, **trusted}}],
            "users": [{"name": name, "user": dict(user)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=2))
        return path

    def _healthy(self, program: Program) -> bool:
        code = program.process.poll() if program.process else None
        if code is not None:
            raise ControlPlaneError(f"{program.name} ended with exit code {code}; {program.last_words()}")
        try:
            return _send("GET", program.health, self.tls)[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    @staticmethod
    def _until(
        done: Callable[[], bool], complaint: str, program: Program, deadline_s: float = START_DEADLINE_S
    ) -> None:
        deadline = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"{program.name} {complaint} after {deadline_s:g} s; {program.last_words()}")
            time.sleep(POLL_S)


def _scheduler_config(config: Mapping[str, Any] | str | None, kubeconfig: str) -> str:
    """The configuration's text with what it leaves out; JSON is YAML, so appended lines of JSON suit a YAML text."""
    usual: dict[str, Any] = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": kubeconfig},
        "leaderElection": {"leaderElect": False},
    }
    if isinstance(config, str):
        if not config.lstrip().startswith("{"):
            absent = [key for key in usual if not re.search(rf"^{key}:", config, re.MULTILINE)]
            return "\n".join([config.rstrip(), *(f"{key}: {json.dumps(usual[key])}" for key in absent), ""])
        return json.dumps({**usual, **json.loads(config)}, indent=2)
    return json.dumps({**usual, **(config or {})}, indent=2)


def _send(
    method: str,
    url: str,
    tls: ssl.SSLContext,
    payload: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
) -> tuple[int, bytes]:
    parts = urlsplit(url)
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.netloc, timeout=timeout_s, context=tls
        )
    else:
        connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    with contextlib.closing(connection):
        path = url.removeprefix(f"{parts.scheme}://{parts.netloc}")
        connection.request(method, path, payload, {"Accept": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()


def base64_of(raw: bytes) -> str:
    """As kubeconfigs and webhooks carry certificates."""
    return base64.b64encode(raw).decode()


def _decoded(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode(errors="replace")
