"""A cluster as a capture has it, healthy unless a test breaks something: nodes, slices, services and their series."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cardwise.adapters.allocations import encode
from cardwise.adapters.capture import read_capture
from cardwise.adapters.node_cards import encode_cards
from cardwise.core.allocation import Allocation, Share
from cardwise.core.inventory import CardSpec
from cardwise.doctor.facts import facts_of
from cardwise.doctor.queries import STEP_S, WINDOW_S
from cardwise.doctor.ranking import diagnose

TAKEN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
STEPS = int(WINDOW_S / STEP_S) + 1
CARD_MIB = 24576
SPIKE = slice(20, 28)
"""Steps at which a service of a test is slow."""


def at(seconds):
    """So many seconds before the capture was taken."""
    return (TAKEN - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def flat(value):
    return [value] * STEPS


def spiking(usual, then, where=SPIKE):
    values = flat(usual)
    values[where] = [then] * len(values[where])
    return values


def certificate(days, names=("cardwise-webhook.cardwise-system.svc",)):
    """PEM in base64 of a certificate that ends in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(TAKEN - timedelta(days=400))
        .not_valid_after(TAKEN + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


GOOD_CERTIFICATE = certificate(365)


class World:
    """nodes, pods, services: by name, as JSON; tests change them. metrics: (labels, values) by query."""

    def __init__(self):
        self.nodes, self.pods, self.others, self.metrics = {}, {}, [], {}
        self.leases = {}
        self.system("scheduler")
        self.system("kube-scheduler")
        self.endpoints_ready = True
        self.bundle = GOOD_CERTIFICATE
        self.kinds_absent = set()
        self._seq = 0

    # ---------------------------------------------------------------- objects

    def node(self, name="g1", cards=2, mib=CARD_MIB, mode="mps", cpu="64", model="A10", **healthy):
        from cardwise.adapters.claims import NAMED_MODES  # noqa: PLC0415

        specs = [
            CardSpec(f"GPU-{name}-{i}", model, mib, NAMED_MODES[mode], healthy.get("healthy", True), ())
            for i in range(cards)
        ]
        slots = {"cardwise.dev/gpu": str(16 * cards)} if cards else {}
        self.nodes[name] = {
            "kind": "Node",
            "metadata": {
                "name": name,
                "uid": f"uid-{name}",
                "labels": {"cardwise.dev/agent": "true"} if cards else {},
                "annotations": {"cardwise.dev/cards": encode_cards(specs)} if cards else {},
            },
            "spec": {},
            "status": {
                "capacity": {"cpu": cpu, "memory": "256Gi", **slots},
                "allocatable": {"cpu": str(float(cpu) - 0.5), "memory": "250Gi", **slots},
                "conditions": [
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": at(20)},
                    {"type": "CardwiseConsistent", "status": "True"},
                    {"type": "CardwiseMPSReady", "status": "True"},
                ],
                "nodeInfo": {"kubeletVersion": "v1.34.2", "containerRuntimeVersion": "containerd://2.1.4"},
            },
        }
        self.leases["kube-node-lease", name] = 5
        if cards:
            self.leases["cardwise-system", f"cardwise-agent-{name}"] = 15
            self.system("agent", node=name)
            for spec in specs:
                self.tell("card_busy_pct", 40.0, uuid=spec.uuid)
                self.tell("card_memory_used_mib", 0.0, uuid=spec.uuid)
                self.tell("card_holds_compute", 2.0, uuid=spec.uuid)
                self.tell("card_holds_memory", 2.0, uuid=spec.uuid)
        return self.nodes[name]

    def system(self, component, node="cpu-1"):
        name = f"cardwise-{component}-{node}"
        self.pods[name] = self._pod(name, "cardwise-system", {"app.kubernetes.io/component": component}, node)
        self.pods[name]["metadata"]["labels"]["app.kubernetes.io/name"] = "cardwise"
        return self.pods[name]

    def pod(self, name, node="", mib=4096, pct=20, card=0, cards=1, whole=False, cpu="2", **more):
        """A pod with a slice on a card of ``node``; one that waits if there is none."""
        made = self.pods[name] = self._pod(name, "serving", {}, node)
        container = made["spec"]["containers"][0]
        ask = {"cardwise.dev/gpu": str(cards)}
        if not whole:
            ask |= {"cardwise.dev/gpu-memory": str(mib * cards), "cardwise.dev/gpu-cores": str(pct * cards)}
        container["resources"] = {"requests": {"cpu": cpu, "memory": "4Gi", **ask}, "limits": {"cpu": "4", **ask}}
        container |= more
        made["spec"]["schedulerName"] = "cardwise"
        if node:
            self._seq += 1
            whole_mib = (
                mib
                if not whole
                else json.loads(self.nodes[node]["metadata"]["annotations"]["cardwise.dev/cards"])[card]["mib"]
            )
            share = Share(f"GPU-{node}-{card}", whole_mib, 100 if whole else pct, whole)
            told = encode(Allocation(node, (("main", (share,)),), 1, self._seq))
            made["metadata"]["annotations"]["cardwise.dev/alloc"] = told
            labels = {"uuid": share.uuid, "namespace": "serving", "pod": name}
            self.tell("slice_memory_granted_mib", float(whole_mib), **labels)
            self.tell("slice_compute_granted_pct", float(share.compute_pct), **labels)
            self.tell("slice_memory_used_mib", 0.8 * whole_mib, **labels)
            self.tell("slice_sm_pct", 0.5 * share.compute_pct, **labels)
            self.tell("pod_cpu_cores", 1.3, namespace="serving", pod=name)
            self.tell("pod_cpu_throttled_share", 0.0, namespace="serving", pod=name)
            self.tell("pod_packets_dropped_s", 0.0, namespace="serving", pod=name)
        else:
            made["status"] = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
        return made

    def _pod(self, name, namespace, labels, node):
        times = {"PodScheduled": 7260, "Initialized": 7255, "Ready": 7200}
        return {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "labels": dict(labels),
                "annotations": {},
                "creationTimestamp": at(7300),
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {
                        "name": "main",
                        "image": "registry.example/resnet:1",
                        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8000}},
                        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}},
                        "startupProbe": {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 30},
                    }
                ],
            },
            "status": {
                "phase": "Running",
                "startTime": at(7260),
                "conditions": [
                    {"type": kind, "status": "True", "lastTransitionTime": at(ago)} for kind, ago in times.items()
                ],
                "containerStatuses": [
                    {"name": "main", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": at(7250)}}}
                ],
            },
        }

    def service(self, name, *pods, p99=0.05, target=0.2, **series):
        """A service behind a gateway, whose replicas are these pods. series: other values, by query."""
        for query, value in {
            "qps": 50.0,
            "p99_s": p99,
            "queue_length": 0.2,
            "batch_mean": 4.0,
            "in_flight": 2.0,
            "limit": 8.0,
            **({} if target is None else {"target_s": target}),
            **series,
        }.items():
            self.tell(query, value, service=name)
        for pod in pods:
            self.tell("replica_pods", 1.0, service=name, namespace="serving", pod=pod)

    def tell(self, query, value, **labels):
        """A series; it takes the place of one with the same labels."""
        values = value if isinstance(value, list) else flat(value)
        there = [each for each in self.metrics.setdefault(query, []) if each[0] != labels]
        self.metrics[query] = [*there, (labels, values)]

    def event(self, pod, reason, message, kind="Pod", namespace="serving"):
        self.others.append(
            {
                "kind": "Event",
                "metadata": {"name": f"e{len(self.others)}", "namespace": namespace},
                "involvedObject": {"kind": kind, "namespace": namespace, "name": pod},
                "reason": reason,
                "message": message,
                "lastTimestamp": at(60),
                "eventTime": None,
            }
        )

    def ended(self, pod, message="", reason="Error", code=1, restarts=4, waiting=""):
        """The pod's container ended so, and waits to be started again."""
        status = self.pods[pod]["status"]
        last = {"exitCode": code, "reason": reason, "message": message, "finishedAt": at(100), "startedAt": at(130)}
        status["containerStatuses"] = [
            {
                "name": "main",
                "ready": False,
                "restartCount": restarts,
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": waiting}},
                "lastState": {"terminated": last},
            }
        ]
        self.not_ready(pod)

    def started(self, pod, ago, ready):
        """The pod's container started so many seconds ago, and was ready at a later time."""
        status = self.pods[pod]["status"]
        for each in status["conditions"]:
            each["lastTransitionTime"] = at(ready if each["type"] == "Ready" else ago)
        status["containerStatuses"][0]["state"] = {"running": {"startedAt": at(ago)}}

    def not_ready(self, pod):
        for each in self.pods[pod]["status"]["conditions"]:
            if each["type"] == "Ready":
                each["status"] = "False"

    # ---------------------------------------------------------------- the capture

    def items(self):
        leases = [
            {
                "kind": "Lease",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {"renewTime": at(ago).replace("Z", ".000000Z"), "leaseDurationSeconds": 60},
            }
            for (namespace, name), ago in self.leases.items()
        ]
        hook = {"name": "admit.cardwise.dev", "failurePolicy": "Fail"}
        service = {"name": "cardwise-webhook", "namespace": "cardwise-system", "path": "/admit"}
        hook["clientConfig"] = {"service": service, "caBundle": self.bundle}
        conditions = {"ready": self.endpoints_ready}
        fixed = [
            {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "cardwise"}, "webhooks": [hook]},
            {
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "cardwise-webhook-x",
                    "namespace": "cardwise-system",
                    "labels": {"kubernetes.io/service-name": "cardwise-webhook"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["10.0.0.7"], "conditions": conditions}],
                "ports": None,
            },
            {"kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"},
            {
                "kind": "Event",
                "metadata": {"name": "plain", "namespace": "serving"},
                "involvedObject": {"kind": "Pod", "namespace": "serving", "name": "x"},
                "reason": "Pulled",
                "message": "Container image already present on machine",
            },
        ]
        found = [*self.nodes.values(), *self.pods.values(), *leases, *fixed, *self.others]
        return [each for each in found if each["kind"] not in self.kinds_absent]

    def as_json(self):
        results = {
            query: [{"labels": labels, "values": values} for labels, values in series]
            for query, series in self.metrics.items()
        }
        begin = (TAKEN - timedelta(seconds=WINDOW_S)).isoformat()
        beside = {"taken": TAKEN.isoformat(), "clockOffS": 0.2}
        beside["measured"] = {"begin": begin, "stepS": STEP_S, "results": results}
        return {"kind": "List", "apiVersion": "v1", "cardwise": beside, "items": self.items()}

    def write(self, folder):
        path = folder / "capture.json"
        path.write_text(json.dumps(self.as_json()))
        return path

    def facts(self, folder, nearby=None):
        return facts_of(read_capture(self.write(folder)), nearby)

    def diagnose(self, folder, nearby=None):
        return diagnose(self.facts(folder, nearby))


def small():
    """Two nodes of two cards, three services, one card shared by two of them. Healthy."""
    world = World()
    world.node("g1")
    world.node("g2")
    world.node("cpu-1", cards=0)
    world.pod("resnet-a", "g1", card=0)
    world.pod("resnet-b", "g2", card=0)
    world.pod("bert-a", "g1", card=0)
    world.pod("llm-a", "g2", mib=12288, pct=50, card=1)
    world.service("serving/resnet", "resnet-a", "resnet-b")
    world.service("serving/bert", "bert-a")
    world.service("serving/llm", "llm-a")
    return world
