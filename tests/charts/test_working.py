"""The installed parts at work: the programs with the chart's settings, as the chart's accounts, on a real server."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import itertools
import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from cardwise.adapters import wire
from cardwise.adapters.node_cards import encode_cards
from cardwise.core.inventory import CardSpec
from cardwise.core.request import Isolation
from tests.charts.conftest import NAMESPACE, wait_for
from tests.charts.helm import CHART
from tests.controlplane.plane import SCHEDULER, KubectlError
from tests.ports import free_ports

pytestmark = pytest.mark.controlplane

LEADS = "cardwise.dev/leads"
EXTENDER = f"cardwise-extender.{NAMESPACE}.svc"


@contextlib.contextmanager
def running(command, log, env=None):
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def make_pod(plane, space, name, limits=None, labels=None):
    container = {"name": "main", "image": "none", "resources": {"limits": limits or {}}}
    metadata = {"name": name, "labels": labels or {}}
    body = {"metadata": metadata, "spec": {"containers": [container]}}
    return plane.api("POST", f"/api/v1/namespaces/{space}/pods", body)


@pytest.fixture
def scheduler(release, tmp_path):
    """``cardwise scheduler`` with the chart's settings but for addresses; its ports of extender and webhook."""
    settings = release.config_map("cardwise-scheduler", "scheduler.toml")
    ports = free_ports(2)
    for name, content in release.secret().items():
        (tmp_path / name).write_bytes(content)
    serving = release.plane.authority.server("cardwise", [EXTENDER])
    for told, here in (
        ("port = 10260", f'host = "127.0.0.1"\nport = {ports[0]}'),
        ("webhook-port = 9443", f"webhook-port = {ports[1]}"),
        ("/etc/cardwise/tls/tls.crt", str(serving.cert)),
        ("/etc/cardwise/tls/tls.key", str(serving.key)),
        ("/etc/cardwise/tls/ca.crt", str(release.plane.ca)),
    ):
        assert settings.count(told) == 1
        settings = settings.replace(told, here)
    config = tmp_path / "scheduler.toml"
    config.write_text(settings)
    program = [Path(sys.executable).with_name("cardwise"), "scheduler", "--config", config]
    log = tmp_path / "scheduler.log"
    with running([*program, "--kubeconfig", release.account(release.scheduler)], log):
        tls = ssl.create_default_context(cafile=str(release.plane.ca))

        def ready():
            with contextlib.suppress(OSError):
                return (
                    urllib.request.urlopen(f"https://localhost:{ports[0]}/readyz", context=tls, timeout=5).status == 200
                )

        try:
            wait_for(ready)
            yield ports
        finally:
            sys.stdout.write(log.read_text())


def _shown(plane, ca=None):
    """Where kube-scheduler's files lie in the chart, and here: the CA it trusts, and the certificate it shows."""
    client = plane.authority.client("cardwise-kube-scheduler")
    folder = "/etc/cardwise/client"
    files = (("ca.crt", ca or plane.ca), ("tls.crt", client.cert), ("tls.key", client.key))
    return tuple((f"{folder}/{name}", str(here)) for name, here in files)


@pytest.fixture
def kube_scheduler(release, scheduler):
    """kube-scheduler with the chart's configuration but for addresses, as the chart's account."""
    plane = release.plane
    config = release.config_map("cardwise-kube-scheduler", "config.yaml")
    for told, here in (
        (f"https://{EXTENDER}:10260", f"https://localhost:{scheduler[0]}"),
        *_shown(plane),
    ):
        assert config.count(told) == 1
        config = config.replace(told, here)
    account = {"kubeconfig": str(release.account(release.kube_scheduler))}
    plane.start_scheduler(f"{config}\nclientConnection: {json.dumps(account)}\n")
    yield
    sys.stdout.write(plane.log(SCHEDULER))
    plane.kill(SCHEDULER)


@pytest.fixture
def webhook(release, scheduler):
    """The webhook's configuration, pointed to where the program is here."""
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/cardwise"
    kept = release.plane.api("GET", path)
    ca = base64.b64encode(release.plane.ca.read_bytes()).decode()
    here = {"url": f"https://localhost:{scheduler[1]}/admit", "caBundle": ca}

    def lead_to(targets):
        patch = [
            {"op": "replace", "path": f"/webhooks/{i}/{key}", "value": value}
            for i, target in enumerate(targets)
            for key, value in target.items()
        ]
        release.plane.api("PATCH", path, patch, content_type="application/json-patch+json")

    # the release waits for two seconds, for most of its tests have nobody there; here it is a program, which may stall
    lead_to([{"clientConfig": here, "timeoutSeconds": 30}] * len(kept["webhooks"]))
    yield
    lead_to([{key: each[key] for key in ("clientConfig", "timeoutSeconds")} for each in kept["webhooks"]])


def test_a_pod_with_an_ask_gets_a_card(release, webhook, kube_scheduler):
    """Webhook, filter, bind and policies, with no more rights than the chart gives."""
    plane = release.plane
    plane.fake_node("card", extended={"cardwise.dev/gpu": 10}, lease=True)
    cards = encode_cards([CardSpec("GPU-1", "A10", 24576, Isolation.ANY)])
    plane.kubectl("annotate", "node", "card", f"cardwise.dev/cards={cards}", *release.as_agent_of("card"))
    space = plane.namespace("works")
    where = functools.partial(plane.api, "GET", f"/api/v1/namespaces/{space}/pods/asks")

    def admitted():
        made = make_pod(plane, space, "asks", {"nvidia.com/gpu.memory": "4096"})
        return made["spec"]["containers"][0]["resources"]["limits"]

    # the API server hears of the webhook's new address a moment later
    assert wait_for(lambda: suppressed(admitted)) == {"cardwise.dev/gpu": "1", "cardwise.dev/gpu-memory": "4096"}
    try:
        made = wait_for(lambda: where() if where()["spec"].get("nodeName") else None)
    except AssertionError:
        pytest.fail(json.dumps(where()["status"]))
    assert made["spec"]["schedulerName"] == "cardwise"
    assert made["spec"]["nodeName"] == "card"
    assert "4096" in made["metadata"]["annotations"]["cardwise.dev/alloc"]
    assert made["metadata"]["labels"]["cardwise.dev/bound"] == "true"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    names = {each["metadata"]["name"] for each in plane.api("GET", leases)["items"]}
    assert {name for name in names if not name.startswith(wire.LEASE_AGENT_PREFIX)} == {
        "cardwise-scheduler",
        "cardwise-kube-scheduler",
    }


def test_a_labelled_namespace_hands_its_whole_cards_over_and_others_keep_theirs(release, webhook):
    plane = release.plane
    adopted, kept = plane.namespace("adopted"), plane.namespace("kept")
    running = make_pod(plane, adopted, "before", {"nvidia.com/gpu": "1"})
    plane.kubectl("label", "namespace", adopted, "cardwise.dev/whole-cards=true")
    names = (f"whole-{i}" for i in itertools.count())

    def admitted():
        spec = make_pod(plane, adopted, next(names), {"nvidia.com/gpu": "2"})["spec"]
        return spec if spec["schedulerName"] == "cardwise" else None

    (container,) = wait_for(lambda: suppressed(admitted))["containers"]
    assert container["resources"]["limits"] == {
        "cardwise.dev/gpu": "2",
        "cardwise.dev/gpu-memory-percentage": "200",
        "cardwise.dev/gpu-cores": "200",
    }
    sliced = make_pod(plane, adopted, "sliced", {"nvidia.com/gpu": "1", "nvidia.com/gpu.memory": "4096"})["spec"]
    assert sliced["containers"][0]["resources"]["limits"] == {
        "cardwise.dev/gpu": "1",
        "cardwise.dev/gpu-memory": "4096",
    }
    assert [each["name"] for each in sliced["containers"][0]["env"]] == ["CARDWISE_ALLOC"]
    beside = make_pod(plane, kept, "whole", {"nvidia.com/gpu": "2"})["spec"]
    assert (beside["schedulerName"], beside["containers"][0]["resources"]["limits"]) == (
        "default-scheduler",
        {"nvidia.com/gpu": "2"},
    )
    assert plane.api("GET", f"/api/v1/namespaces/{adopted}/pods/before")["spec"] == running["spec"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [({"schedulerName": "volcano"}, "knows nothing of card slices"), ({"nodeName": "a"}, "spec.nodeName")],
    ids=["schedulerName", "nodeName"],
)
def test_a_pod_that_asks_for_a_slice_and_decides_itself_who_places_it_is_refused(release, webhook, spec, told):
    container = {"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu.memory": "4096"}}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": {"containers": [container], **spec}}
    create = functools.partial(release.plane.kubectl, "create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

    def refusal():
        try:
            create()
        except KubectlError as error:
            return None if "failed calling webhook" in error.stderr else error.stderr

    assert told in wait_for(refusal)


def test_the_notes_after_an_install_show_commands_that_do_what_they_say(release, webhook):
    notes = release.helm("get", "notes", "cardwise", "--namespace", NAMESPACE).replace("\\\n", " ")
    tries = [shlex.split(line)[1:] for line in notes.splitlines() if line.strip().startswith("kubectl run")]
    assert len(tries) == 2
    assert wait_for(lambda: suppressed(lambda: release.plane.kubectl(*tries[0]))) == "cardwise"
    with pytest.raises(KubectlError, match="ValidatingAdmissionPolicy 'cardwise-allocation'"):
        release.plane.kubectl(*tries[1])


def test_the_page_and_the_notes_show_the_same_checks(release):
    """Command by command; the page has the usual namespace written out."""
    notes = release.helm("get", "notes", "cardwise", "--namespace", NAMESPACE).partition("\nCheck next:\n")[2]
    page = (CHART.parents[1] / "docs" / "howto" / "install.md").read_text().partition("\n## Check\n")[2]
    shown = [_commands(text.partition("\n## ")[0]) for text in (notes, page)]
    assert len(shown[0]) >= 7
    assert shown[0] == shown[1]


def _commands(text):
    lines = [line.strip().removeprefix("$ ") for line in text.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith(("kubectl ", "cardwise "))]


def suppressed(action):
    with contextlib.suppress(Exception):
        return action()


def test_kube_scheduler_refuses_an_extender_with_another_certificate(release, scheduler):
    """It has the chart's CA, and the program here has a certificate of another: filter fails and says so."""
    plane = release.plane
    ca = plane.folder / "chart-ca.crt"
    ca.write_bytes(release.secret()["ca.crt"])
    config = release.config_map("cardwise-kube-scheduler", "config.yaml")
    config = config.replace(f"https://{EXTENDER}:10260", f"https://localhost:{scheduler[0]}")
    for told, here in (*_shown(plane, ca), ("schedulerName: cardwise", "schedulerName: wary")):
        config = config.replace(told, here)
    config = re.sub(r"leaderElect: true", "leaderElect: false", config)
    plane.fake_node("wary", extended={"cardwise.dev/gpu": 10}, lease=True)
    plane.start_scheduler(config)
    try:
        container = {"name": "main", "image": "none", "resources": {"limits": {"cardwise.dev/gpu": "1"}}}
        body = {"metadata": {"name": "wary"}, "spec": {"schedulerName": "wary", "containers": [container]}}
        plane.api("POST", "/api/v1/namespaces/kube-system/pods", body)
        path = "/api/v1/namespaces/kube-system/pods/wary"
        told = wait_for(lambda: [each["message"] for each in plane.api("GET", path)["status"].get("conditions", ())])
        assert "certificate signed by unknown authority" in told[0]
    finally:
        plane.kill(SCHEDULER)


# -------------------------------------------------------------------- the label of the replica that leads


class Readyz(http.server.BaseHTTPRequestHandler):
    """A scheduler that leads, or does not."""

    status = 503

    def do_GET(self):
        self.send_response(Readyz.status if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_args):
        """Say nothing."""


@pytest.fixture
def neighbour(release):
    """The scheduler next door; its port."""
    serving = release.plane.authority.server("neighbour")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Readyz)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(serving.cert, serving.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def test_the_label_follows_the_lead(release, neighbour, tmp_path):
    plane = release.plane
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    make_pod(plane, NAMESPACE, "mine")
    make_pod(plane, NAMESPACE, "dead", labels={LEADS: "true"})
    (tmp_path / "token").write_text(plane.kubectl("create", "token", "cardwise-scheduler", "-n", NAMESPACE))
    (tmp_path / "ca.crt").write_bytes(plane.ca.read_bytes())
    host, port = plane.url.removeprefix("https://").split(":")
    env = {
        "PATH": os.environ["PATH"],
        "POD_NAME": "mine",
        "POD_NAMESPACE": NAMESPACE,
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "CARDWISE_ACCOUNT": str(tmp_path),
        "CARDWISE_EXTENDER_PORT": str(neighbour),
    }
    selector = f"{pods}?labelSelector={LEADS}%3Dtrue"

    def leading():
        return [each["metadata"]["name"] for each in plane.api("GET", selector)["items"]]

    script = [sys.executable, "-I", CHART / "files" / "leader_label.py"]
    with running(script, tmp_path / "log", env) as process:
        assert leading() == ["dead"], "one that does not lead leaves others alone"
        Readyz.status = 200
        wait_for(lambda: leading() == ["mine"])
        Readyz.status = 503
        wait_for(lambda: leading() == [])
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 0
    # an API server that stalls is asked again a second later, and that is no fault
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "not labelled" in line]
    assert not [line for line in said if "timed out" not in line]
