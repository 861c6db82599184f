"""A fault for each cause: a healthy cluster, one thing broken in it, and what that looks like from outside.

Each function breaks ``world.small()``. What follows from the fault is there too, where a real one would show it: doctor
must name the cause first, not its loudest consequence.
"""

from __future__ import annotations

import json

from tests.doctor.world import CARD_MIB, SPIKE, at, certificate, flat, spiking

FAULTS = {}
"""Code and a name, to the function."""


def fault(code, name):
    def noted(function):
        FAULTS[code, name] = function
        return function

    return noted


def starved(world, **series):
    """The P99 of the service resnet spikes while its card does nothing."""
    world.service("serving/resnet", "resnet-a", p99=spiking(0.05, 0.9), **series)
    world.tell("slice_sm_pct", spiking(12.0, 0.4), uuid="GPU-g1-0", namespace="serving", pod="resnet-a")
    world.tell("card_busy_pct", spiking(55.0, 6.0), uuid="GPU-g1-0")
    world.metrics["replica_pods"] = [each for each in world.metrics["replica_pods"] if each[0]["pod"] != "resnet-b"]


# ---------------------------------------------------------------- 1xx: the cluster and its parts


@fault("CW101", "no endpoint of the webhook is ready")
def _(world):
    world.endpoints_ready = False
    world.not_ready("cardwise-scheduler-cpu-1")
    world.event("resnet", "FailedCreate", 'failed calling webhook "admit.cardwise.dev": no endpoints', "ReplicaSet")


@fault("CW101", "the webhook has no trust")
def _(world):
    world.bundle = ""


@fault("CW102", "it expired yesterday, and the webhook is not reached")
def _(world):
    world.bundle = certificate(-1)
    world.event("resnet", "FailedCreate", 'failed calling webhook "admit.cardwise.dev": x509: expired', "ReplicaSet")


@fault("CW102", "it expires in a week")
def _(world):
    world.bundle = certificate(7)


@fault("CW102", "the secret's certificate, beside its key")
def _(world):
    data = {"tls.crt": certificate(3), "ca.crt": "", "tls.key": "bm90IGZvciB5b3U="}
    metadata = {"name": "cardwise-tls", "namespace": "cardwise-system"}
    world.others.append({"kind": "Secret", "type": "kubernetes.io/tls", "metadata": metadata, "data": data})


@fault("CW103", "a node's clock is ahead")
def _(world):
    world.leases["kube-node-lease", "g1"] = -90


@fault("CW103", "a node's clock is behind")
def _(world):
    world.leases["kube-node-lease", "g1"] = 600
    world.leases["cardwise-system", "cardwise-agent-g1"] = 610


@fault("CW103", "measured by node_exporter")
def _(world):
    world.tell("clock_off_s", 12.0, instance="g2:9100")


@fault("CW104", "NVIDIA's plugin is still on a node, and takes compute there")
def _(world):
    for part in ("capacity", "allocatable"):
        world.nodes["g1"]["status"][part]["nvidia.com/gpu"] = "2"
    plugin = world.system("nvidia", node="g1")
    plugin["spec"]["containers"][0]["image"] = "nvcr.io/nvidia/k8s-device-plugin:v0.19.2"
    stranger = world.pod("stranger", "g1", card=1)
    stranger["metadata"]["annotations"] = {}
    stranger["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    stranger["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1"}


@fault("CW104", "another plugin registers our resource, and the kubelet leaves the agent again and again")
def _(world):
    """Case C14."""
    world.tell("registrations", spiking(0.0, 40.0, slice(30, None)), instance="10.0.0.5:10261", node="g1")


@fault("CW105", "a kubelet too old for CDI")
def _(world):
    world.nodes["g1"]["status"]["nodeInfo"]["kubeletVersion"] = "v1.27.3"


@fault("CW105", "a runtime without CDI")
def _(world):
    world.nodes["g1"]["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.8"
    world.ended("resnet-a", waiting="failed to create task: unresolvable CDI devices cardwise.dev/slot=g1-0-3")


@fault("CW105", "the image's CUDA is newer than the driver")
def _(world):
    text = "RuntimeError: CUDA driver version is insufficient for CUDA runtime version"
    world.ended("resnet-a", text)


@fault("CW106", "a GPU node keeps nothing back")
def _(world):
    world.nodes["g1"]["status"]["allocatable"] = dict(world.nodes["g1"]["status"]["capacity"])


@fault("CW107", "an agent is silent, and pods wait for its node")
def _(world):
    world.leases["cardwise-system", "cardwise-agent-g1"] = 700
    condition = {"type": "CardwiseConsistent", "status": "False", "message": "its agent is silent since 11:48"}
    world.nodes["g1"]["status"]["conditions"][1] = condition
    world.not_ready("cardwise-agent-g1")
    world.nodes["g2"]["spec"]["unschedulable"] = True
    world.pod("waits", mib=8192, pct=30)


@fault("CW107", "a node is lost, and no other has room")
def _(world):
    ready = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastHeartbeatTime": at(900)}
    world.nodes["g1"]["status"]["conditions"][0] = ready
    world.leases["kube-node-lease", "g1"] = 900
    world.leases["cardwise-system", "cardwise-agent-g1"] = 900


@fault("CW107", "the API server takes no reports of the agent")
def _(world):
    world.tell("publish_failures", spiking(0.0, 25.0, slice(30, None)), instance="10.0.0.5:10261", node="g1")


@fault("CW108", "the MPS daemon is dead")
def _(world):
    condition = {"type": "CardwiseMPSReady", "status": "False", "message": "the daemon does not answer"}
    world.nodes["g1"]["status"]["conditions"][2] = condition


@fault("CW108", "limits are set and not in force, and a neighbour uses that")
def _(world):
    world.tell("card_holds_compute", 0.0, uuid="GPU-g1-0")
    world.tell(
        "mps_alarms",
        spiking(0.0, 2.0, slice(20, None)),
        instance="10.0.0.5:10261",
        node="g1",
        kind="limit-not-in-force",
    )
    world.tell("bypasses", spiking(0.0, 1.0, slice(20, None)), instance="10.0.0.5:10261", node="g1")
    world.service("serving/resnet", "resnet-a", "resnet-b", p99=spiking(0.05, 0.9))
    world.tell("slice_sm_pct", spiking(10.0, 70.0), uuid="GPU-g1-0", namespace="serving", pod="bert-a")
    world.tell("card_busy_pct", spiking(55.0, 99.0), uuid="GPU-g1-0")


@fault("CW109", "kube-scheduler with the extender is gone")
def _(world):
    world.not_ready("cardwise-kube-scheduler-cpu-1")
    world.pod("waits")


# ---------------------------------------------------------------- 2xx: pods that wait


@fault("CW201", "a misspelt amount")
def _(world):
    made = world.pod("waits")
    made["spec"]["containers"][0]["resources"]["limits"]["cardwise.dev/gpu-memory"] = "-1"


@fault("CW202", "larger than any card")
def _(world):
    world.pod("waits", mib=40960)


@fault("CW202", "a model that is not there")
def _(world):
    world.pod("waits")["metadata"]["annotations"]["cardwise.dev/gpu-model"] = "H100"


@fault("CW202", "more cards than a node has")
def _(world):
    world.pod("waits", cards=4)


@fault("CW203", "8 GiB are free on each of four cards, 12 are asked for")
def _(world):
    for i, (node, card) in enumerate((("g1", 0), ("g1", 1), ("g2", 0), ("g2", 1))):
        world.pod(f"filler-{i}", node, mib=8192 if (node, card) != ("g1", 1) else 16384, pct=10, card=card)
    world.pod("waits", mib=16500, pct=30)


@fault("CW204", "a whole card is asked for, slices lie on all of them")
def _(world):
    world.pod("filler", "g1", mib=2048, pct=10, card=1)
    world.pod("waits", whole=True)


@fault("CW204", "whole cards are held by pods that use a tenth of them")
def _(world):
    world.pods = {name: pod for name, pod in world.pods.items() if pod["metadata"]["namespace"] != "serving"}
    world.metrics = {name: found for name, found in world.metrics.items() if name.startswith("card_")}
    for node in ("g1", "g2"):
        for card in (0, 1):
            world.pod(f"hog-{node}-{card}", node, card=card, whole=True)
            world.tell("card_memory_used_mib", 2400.0, uuid=f"GPU-{node}-{card}")
    world.pod("waits", mib=4096)


@fault("CW205", "cards are free, CPU is not")
def _(world):
    for node in ("g1", "g2"):
        made = world.pod(f"etl-{node}", node, cpu="59")
        made["metadata"]["annotations"] = {}
        made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "59"}}
        made["spec"].pop("schedulerName")
        for query in list(world.metrics):
            world.metrics[query] = [e for e in world.metrics[query] if e[0].get("pod") != f"etl-{node}"]
    world.pod("waits", cpu="16")


@fault("CW206", "a pod waits for the default scheduler")
def _(world):
    made = world.pod("waits")
    made["spec"]["schedulerName"] = "default-scheduler"
    limits = {"nvidia.com/gpu": "1"}
    made["spec"]["containers"][0]["resources"] = {"limits": limits, "requests": limits}
    made["status"]["conditions"][0]["message"] = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


@fault("CW206", "no node is cardwise's, and a pod waits for a whole card")
def _(world):
    for name in ("g1", "g2"):
        del world.nodes[name]["metadata"]["annotations"]["cardwise.dev/cards"]
        for part in ("capacity", "allocatable"):
            world.nodes[name]["status"][part]["nvidia.com/gpu"] = "2"
            del world.nodes[name]["status"][part]["cardwise.dev/gpu"]
        world.nodes[name]["metadata"]["labels"] = {}
    world.pods = {"waits": world.pod("waits")}
    world.pods["waits"]["spec"]["schedulerName"] = "default-scheduler"


@fault("CW207", "Kueue does not admit it")
def _(world):
    made = world.pod("waits")
    made["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    said = "couldn't assign flavors to pod set main: insufficient unused quota for cardwise.dev/gpu-memory"
    world.others.append(
        {
            "kind": "Workload",
            "metadata": {
                "name": "pod-waits-1",
                "namespace": "serving",
                "ownerReferences": [{"kind": "Pod", "name": "waits", "uid": "uid-waits"}],
            },
            "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": said}]},
        }
    )


@fault("CW207", "a ResourceQuota is used up")
def _(world):
    message = 'pods "bert-7" is forbidden: exceeded quota: gpu, requested: cardwise.dev/gpu-memory=4096, used: 40960'
    world.event("bert", "FailedCreate", message, "ReplicaSet")


@fault("CW208", "all cards are sick")
def _(world):
    for node in ("g1", "g2"):
        cards = json.loads(world.nodes[node]["metadata"]["annotations"]["cardwise.dev/cards"])
        told = json.dumps([{**card, "healthy": False} for card in cards])
        world.nodes[node]["metadata"]["annotations"]["cardwise.dev/cards"] = told
    world.pod("waits", mib=1024, pct=10)


@fault("CW208", "all GPU nodes are cordoned")
def _(world):
    for node in ("g1", "g2"):
        world.nodes[node]["spec"]["unschedulable"] = True
    world.pod("waits", mib=1024, pct=10)


@fault("CW209", "a taint that it does not tolerate")
def _(world):
    made = world.pod("waits", mib=1024, pct=10)
    for node in ("g1", "g2"):
        world.nodes[node]["spec"]["taints"] = [{"key": "team", "value": "a", "effect": "NoSchedule"}]
    text = "0/3 nodes are available: 2 node(s) had untolerated taint {team: a}."
    made["status"]["conditions"][0]["message"] = text


@fault("CW210", "everything is given away")
def _(world):
    for i, (node, card) in enumerate((("g1", 0), ("g1", 1), ("g2", 0), ("g2", 1))):
        free = {
            ("g1", 0): CARD_MIB - 8192,
            ("g1", 1): CARD_MIB,
            ("g2", 0): CARD_MIB - 4096,
            ("g2", 1): CARD_MIB - 12288,
        }
        world.pod(f"filler-{i}", node, mib=free[node, card] - 512, pct=10, card=card)
    world.pod("waits", mib=8192, pct=30)


# ---------------------------------------------------------------- 3xx: no GPU in a container


@fault("CW301", "the runtime does not find the slot")
def _(world):
    text = "failed to create containerd task: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0"
    world.ended("resnet-a", waiting=text)


@fault("CW301", "no driver library in a container that has a card")
def _(world):
    world.ended("resnet-a", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory")


@fault("CW302", "the runtime has no handler")
def _(world):
    world.pods["resnet-a"]["spec"]["runtimeClassName"] = "nvidia"
    world.not_ready("resnet-a")
    text = 'Failed to create pod sandbox: failed to get sandbox runtime: no runtime for "nvidia" is configured'
    world.event("resnet-a", "FailedCreatePodSandBox", text)


@fault("CW302", "the class is not there")
def _(world):
    world.pod("waits", mib=1024, pct=10)["spec"]["runtimeClassName"] = "nvidia-legacy"


@fault("CW303", "the kubelet offers no slots")
def _(world):
    world.nodes["g1"]["status"]["allocatable"]["cardwise.dev/gpu"] = "0"


@fault("CW303", "the kubelet refused the pod")
def _(world):
    text = "Allocate failed due to rpc error: code = Unknown desc = card GPU-g1-0 is fenced, which is unexpected"
    world.pods["resnet-a"]["status"] = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": text}
    world.pods["resnet-a"]["status"]["startTime"] = at(300)


@fault("CW304", "the sidecar looks for a GPU")
def _(world):
    world.pods["resnet-a"]["spec"]["containers"].append({"name": "probe", "image": "registry.example/probe:1"})
    world.pods["resnet-a"]["status"]["containerStatuses"].append(
        {
            "name": "probe",
            "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "RuntimeError: No CUDA GPUs are available"}},
        }
    )


# ---------------------------------------------------------------- 4xx: services


@fault("CW401", "one request at a time")
def _(world):
    world.service(
        "serving/llm", "llm-a", p99=0.9, batch_mean=1.0, queue_length=20.0, in_flight=1.0, limit=1.0, qps=11.0
    )
    world.tell("slice_sm_pct", 49.0, uuid="GPU-g2-1", namespace="serving", pod="llm-a")
    world.tell("card_busy_pct", 97.0, uuid="GPU-g2-1")


@fault("CW402", "fifty requests at a time")
def _(world):
    world.service("serving/llm", "llm-a", p99=0.9, batch_mean=1.0, queue_length=0.0, in_flight=50.0, limit=64.0)
    world.tell("slice_sm_pct", 50.0, uuid="GPU-g2-1", namespace="serving", pod="llm-a")
    world.tell("card_busy_pct", 99.0, uuid="GPU-g2-1")


@fault("CW403", "a limit of two before an idle card")
def _(world):
    world.service("serving/llm", "llm-a", queue_length=14.0, in_flight=2.0, limit=2.0, p99=0.18)
    world.tell("slice_sm_pct", 9.0, uuid="GPU-g2-1", namespace="serving", pod="llm-a")


@fault("CW404", "the tokenizer is bound by the CPU limit: P99 spikes while the GPU idles")
def _(world):
    starved(world, queue_length=spiking(0.2, 30.0))
    world.tell("pod_cpu_cores", spiking(1.3, 3.97), namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_throttled_share", spiking(0.0, 0.8), namespace="serving", pod="resnet-a")


@fault("CW404", "the tokenizer is one thread, far from the limit")
def _(world):
    starved(world)
    world.tell("pod_cpu_cores", spiking(0.5, 1.0), namespace="serving", pod="resnet-a")


@fault("CW404", "others on the node have the CPU, and the pod has no limit")
def _(world):
    starved(world)
    del world.pods["resnet-a"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]
    world.tell("pod_cpu_cores", spiking(1.3, 0.4), namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_waiting_share", spiking(0.0, 0.7), namespace="serving", pod="resnet-a")


@fault("CW404", "in the half hour in which a peak of load had filled the card before")
def _(world):
    peak = slice(SPIKE.start - 12, SPIKE.start - 2)

    def both(usual, at_peak, then):
        values = spiking(usual, then)
        values[peak] = [at_peak] * 10
        return values

    world.service("serving/resnet", "resnet-a", p99=both(0.05, 0.4, 0.9), queue_length=both(0.2, 20.0, 30.0))
    world.tell("slice_sm_pct", both(12.0, 30.0, 0.4), uuid="GPU-g1-0", namespace="serving", pod="resnet-a")
    world.tell("card_busy_pct", both(55.0, 100.0, 6.0), uuid="GPU-g1-0")
    world.metrics["replica_pods"] = [each for each in world.metrics["replica_pods"] if each[0]["pod"] != "resnet-b"]
    world.tell("pod_cpu_cores", both(1.3, 2.0, 3.97), namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_throttled_share", both(0.0, 0.0, 0.8), namespace="serving", pod="resnet-a")


@fault("CW404", "always short, so nothing is calm")
def _(world):
    starved(world)
    world.service("serving/resnet", "resnet-a", p99=flat(0.7), queue_length=12.0, in_flight=8.0, limit=8.0)
    world.tell("slice_sm_pct", 1.0, uuid="GPU-g1-0", namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_cores", 3.99, namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_throttled_share", 0.9, namespace="serving", pod="resnet-a")


@fault("CW404", "always short, and nobody said what slow is")
def _(world):
    starved(world)
    world.metrics["target_s"] = []
    world.service("serving/resnet", "resnet-a", p99=4.6, target=None, qps=8.0)
    world.tell("slice_sm_pct", 1.0, uuid="GPU-g1-0", namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_cores", 3.6, namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_throttled_share", 0.9, namespace="serving", pod="resnet-a")


@fault("CW405", "packets are lost")
def _(world):
    starved(world)
    world.tell("pod_packets_dropped_s", spiking(0.0, 240.0), namespace="serving", pod="resnet-a")


@fault("CW406", "a neighbour takes more than it was granted")
def _(world):
    world.service("serving/resnet", "resnet-a", "resnet-b", p99=spiking(0.05, 0.9))
    world.tell("card_holds_compute", 1.0, uuid="GPU-g1-0")
    world.tell("slice_sm_pct", spiking(10.0, 80.0), uuid="GPU-g1-0", namespace="serving", pod="bert-a")
    world.tell("card_busy_pct", spiking(55.0, 99.0), uuid="GPU-g1-0")


@fault("CW407", "vLLM takes 92 % of the card unless told")
def _(world):
    container = world.pods["llm-a"]["spec"]["containers"][0]
    container |= {"image": "vllm/vllm-openai:v0.16.0", "args": ["--model", "m"]}
    text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 24.00 GiB"
    world.ended("llm-a", text)


@fault("CW407", "a share that is the user's own")
def _(world):
    container = world.pods["llm-a"]["spec"]["containers"][0]
    container |= {"command": ["vllm", "serve"], "args": ["m", "--gpu-memory-utilization", "0.9"]}


@fault("CW408", "the kernel killed it while it loaded")
def _(world):
    world.ended("resnet-a", reason="OOMKilled", code=137)
    world.event("resnet-a", "Unhealthy", "Startup probe failed: connection refused")


@fault("CW409", "CUDA is out of memory again and again")
def _(world):
    world.ended("resnet-a", "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB", restarts=9)
    world.tell("slice_memory_used_mib", 4090.0, uuid="GPU-g1-0", namespace="serving", pod="resnet-a")


@fault("CW410", "the weights are on another node")
def _(world):
    made = world.pods["llm-a"]
    made["metadata"]["annotations"]["cardwise.dev/model"] = "llama-8b"
    world.nodes["g1"]["metadata"]["annotations"]["cardwise.dev/cached-models"] = "llama-8b"
    world.started("llm-a", 900, ready=120)


@fault("CW411", "liveness asks for an inference")
def _(world):
    probe = {"httpGet": {"path": "/v1/chat/completions", "port": 8000}}
    world.pods["llm-a"]["spec"]["containers"][0]["livenessProbe"] = probe
    world.event("llm-a", "Unhealthy", "Liveness probe failed: context deadline exceeded")


@fault("CW411", "the startup probe bears 30 s")
def _(world):
    probe = {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 10, "failureThreshold": 3}
    world.pods["llm-a"]["spec"]["containers"][0]["startupProbe"] = probe
    world.ended("llm-a", code=137, reason="Error", restarts=6)
    world.event("llm-a", "Unhealthy", "Startup probe failed: Get http://10.0.0.9:8000/health: connection refused")


@fault("CW412", "slow just after a replica became ready")
def _(world):
    world.service("serving/resnet", "resnet-a", "resnet-b", p99=spiking(0.05, 3.0, slice(40, 44)))
    made = world.pods["resnet-b"]
    del made["spec"]["containers"][0]["readinessProbe"]
    world.started("resnet-b", 660, ready=605)


@fault("CW413", "a peak that the replicas cannot serve")
def _(world):
    peak = {"qps": spiking(50.0, 400.0), "queue_length": spiking(0.2, 60.0), "in_flight": spiking(4.0, 32.0)}
    world.service("serving/resnet", "resnet-a", "resnet-b", p99=spiking(0.05, 0.9), batch_mean=16.0, **peak)
    for pod, uuid in (("resnet-a", "GPU-g1-0"), ("resnet-b", "GPU-g2-0")):
        world.tell("slice_sm_pct", spiking(10.0, 19.5), uuid=uuid, namespace="serving", pod=pod)
        world.tell("card_busy_pct", spiking(40.0, 97.0), uuid=uuid)


__all__ = ["FAULTS", "SPIKE"]
