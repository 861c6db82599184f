"""States that look like a fault and are none: a cluster that is at work, at rest, or not cardwise's, has no finding."""

from __future__ import annotations

import copy

import pytest

from tests.doctor.world import STEPS, World, at, flat, small, spiking

STATES = {}


def state(function):
    """A state of a cluster that is well."""
    STATES[function.__name__.replace("_", " ")] = function
    return function


def without_cardwise(**ask):
    """Two nodes of another device plugin, with four pods that ask so."""
    world = World()
    world.pods, world.leases = {}, {}
    world.kinds_absent = {"MutatingWebhookConfiguration", "EndpointSlice"}
    for name in ("a", "b"):
        status = world.node(name, cards=0)["status"]
        status["conditions"] = status["conditions"][:1]
        for part in ("capacity", "allocatable"):
            status[part] |= dict.fromkeys(ask, "40")
    for i in range(4):
        made = world.pod(f"job-{i}", whole=True)
        made["spec"] |= {"nodeName": "a", "schedulerName": "default-scheduler"}
        made["spec"]["containers"][0]["resources"] = {"limits": ask, "requests": ask}
        made["status"] = world._pod("like", "serving", {}, "a")["status"]
    world.metrics = {}
    return world


@state
def no_cardwise_at_all():
    return without_cardwise(**{"nvidia.com/gpu": "1"})


@state
def hami_alone():
    world = without_cardwise(**{"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
    told = '[{"id":"GPU-1","count":10,"devmem":81920,"devcore":100,"type":"NVIDIA-A100","health":true}]'
    for node in world.nodes.values():
        node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = told
    return world


@state
def mig_of_nvidias_plugin():
    return without_cardwise(**{"nvidia.com/mig-1g.5gb": "1"})


@state
def dcgm_alone():
    world = without_cardwise(**{"nvidia.com/gpu": "1"})
    world.tell("card_busy_pct", 99.0, uuid="GPU-x")
    world.tell("card_memory_used_mib", 80000.0, uuid="GPU-x")
    return world


@state
def no_gpu_in_the_cluster():
    world = World()
    world.node("cpu-1", cards=0)
    return world


@state
def a_node_that_joined_ten_seconds_ago():
    world = small()
    made = world.node("new")
    made["metadata"] |= {"creationTimestamp": at(10), "annotations": {}}
    del made["status"]["allocatable"]["cardwise.dev/gpu"]
    made["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "cni plugin not initialized"}]
    del world.leases["cardwise-system", "cardwise-agent-new"]
    world.not_ready("cardwise-agent-new")
    return world


@state
def an_agent_that_is_replaced():
    world = small()
    world.pods["cardwise-agent-g1"]["metadata"]["creationTimestamp"] = at(20)
    world.not_ready("cardwise-agent-g1")
    world.leases["cardwise-system", "cardwise-agent-g1"] = 110
    world.nodes["g1"]["status"]["allocatable"]["cardwise.dev/gpu"] = "0"
    told = {"type": "CardwiseMPSReady", "status": "False", "message": "it starts"}
    world.nodes["g1"]["status"]["conditions"][2] = told
    return world


@state
def a_node_that_was_drained_and_switched_off():
    world = small()
    made = world.node("old")
    made["spec"]["unschedulable"] = True
    made["status"]["conditions"][0] = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}
    world.leases["kube-node-lease", "old"] = world.leases["cardwise-system", "cardwise-agent-old"] = 9000
    world.not_ready("cardwise-agent-old")
    return world


def ended(world, name, phase, seconds_ago, message=""):
    """A pod that is through."""
    made = world.pod(name, "g1", card=1)
    end = {"exitCode": 0 if phase == "Succeeded" else 1, "finishedAt": at(seconds_ago), "message": message}
    made["metadata"]["creationTimestamp"] = at(seconds_ago + 60)
    made["status"] = {"phase": phase, "containerStatuses": [{"name": "main", "state": {"terminated": end}}]}
    world.metrics = {query: [e for e in found if e[0].get("pod") != name] for query, found in world.metrics.items()}
    return made


@state
def a_job_that_is_completed():
    world = small()
    ended(world, "job", "Succeeded", 500)
    return world


@state
def a_job_that_failed_days_ago():
    world = small()
    made = ended(world, "job", "Failed", 3 * 86400, "RuntimeError: No CUDA GPUs are available")
    made["spec"]["containers"][0]["resources"] = {}
    return world


@state
def a_pod_that_was_refused_weeks_ago():
    world = small()
    made = ended(world, "old", "Failed", 20 * 86400)
    made["metadata"]["annotations"] = {}
    told = "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices cardwise.dev/gpu"
    made["status"] |= {"reason": "UnexpectedAdmissionError", "message": told, "startTime": at(20 * 86400)}
    return world


@state
def a_pod_that_started_before_its_driver_and_runs_well_since():
    world = small()
    told = "CDI device injection failed: unresolvable CDI devices cardwise.dev/slot=g1-0-3"
    status = world.pods["resnet-a"]["status"]["containerStatuses"][0]
    status |= {"restartCount": 3, "lastState": {"terminated": {"message": told, "finishedAt": at(7260)}}}
    status["state"] = {"running": {"startedAt": at(7200)}}
    return world


@state
def a_replica_that_was_unready_for_a_moment():
    world = small()
    world.pods["llm-a"]["status"]["conditions"][2]["lastTransitionTime"] = at(300)
    return world


@state
def an_image_that_was_pulled_for_long():
    world = small()
    world.started("llm-a", 700, ready=600)
    world.pods["llm-a"]["status"]["conditions"][0]["lastTransitionTime"] = at(3000)
    return world


@state
def services_at_night():
    world = small()
    for query in ("qps", "in_flight", "queue_length"):
        world.metrics[query] = [(labels, flat(0.0)) for labels, _ in world.metrics[query]]
    for query in ("p99_s", "batch_mean"):
        world.metrics[query] = [(labels, flat(None)) for labels, _ in world.metrics[query]]
    return world


@state
def three_requests_a_minute_and_no_target():
    world = small()
    world.metrics["target_s"] = []
    world.metrics["qps"] = [(labels, flat(0.05)) for labels, _ in world.metrics["qps"]]
    p99 = [0.03 if i % 5 else 0.24 for i in range(STEPS)]
    world.metrics["p99_s"] = [(labels, p99) for labels, _ in world.metrics["p99_s"]]
    return world


@state
def bursts_of_few_requests_that_the_kernel_holds_back():
    world = three_requests_a_minute_and_no_target()
    world.tell("slice_sm_pct", 0.2, uuid="GPU-g1-0", namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_cores", 3.0, namespace="serving", pod="resnet-a")
    world.tell("pod_cpu_throttled_share", 0.8, namespace="serving", pod="resnet-a")
    return world


@state
def a_batch_service_at_work():
    world = small()
    world.pods["llm-a"]["metadata"]["annotations"]["cardwise.dev/class"] = "best-effort"
    world.metrics["target_s"] = [each for each in world.metrics["target_s"] if "llm" not in each[0]["service"]]
    busy = {"queue_length": 300.0, "batch_mean": 32.0, "in_flight": 64.0, "limit": 64.0}
    world.service("serving/llm", "llm-a", p99=spiking(5.0, 60.0), target=None, **busy)
    world.tell("slice_sm_pct", 50.0, uuid="GPU-g2-1", namespace="serving", pod="llm-a")
    world.tell("card_busy_pct", 100.0, uuid="GPU-g2-1")
    return world


@state
def a_service_that_is_updated():
    world = small()
    made = world.pod("resnet-c", "g2")
    made["metadata"]["creationTimestamp"] = at(20)
    waits = {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(19)}
    made["status"] = {"phase": "Pending", "conditions": [bound], "containerStatuses": [waits]}
    world.pods["resnet-a"]["metadata"]["deletionTimestamp"] = at(5)
    world.not_ready("resnet-a")
    return world


@state
def pods_whose_turn_has_not_come():
    world = small()
    for i in range(20):
        made = world.pod(f"new-{i}", mib=1024, pct=5)
        made["metadata"]["creationTimestamp"] = at(60)
        made["status"] = {"phase": "Pending"}
    return world


@state
def cards_that_are_time_sliced_on_purpose():
    world = small()
    world.node("turns", mode="time-slicing")
    for name in ("one", "two"):
        world.pod(name, "turns")
    for what in ("compute", "memory"):
        world.tell(f"card_holds_{what}", 0.0, uuid="GPU-turns-0")
    return world


@state
def a_pod_of_a_node_that_is_gone_since():
    world = small()
    world.pod("left", "g1", card=1)["spec"]["nodeName"] = "vanished"
    return world


@state
def a_pod_without_cards_that_waits_for_a_runtime_class():
    world = small()
    made = world.pod("web")
    made["spec"]["runtimeClassName"] = "kata"
    made["spec"]["containers"][0]["resources"] = {}
    return world


@state
def a_list_without_uids():
    world = small()
    for each in (*world.nodes.values(), *world.pods.values()):
        del each["metadata"]["uid"]
    return world


@pytest.mark.parametrize("name", STATES)
def test_what_is_no_fault_has_no_finding(tmp_path, name):
    ranked = STATES[name]().diagnose(tmp_path)
    assert not ranked, [(each.finding.code, each.finding.cause, each.finding.evidence) for each in ranked]


def test_an_agent_that_fails_again_and_again_is_no_agent_that_starts(tmp_path):
    world = an_agent_that_is_replaced()
    made = world.pods["cardwise-agent-g1"]
    made["metadata"]["creationTimestamp"] = at(9000)
    life = {"exitCode": 1, "message": "no driver", "startedAt": at(330), "finishedAt": at(320)}
    made["status"]["containerStatuses"][0] |= {
        "restartCount": 17,
        "state": {"running": {"startedAt": at(20)}},
        "lastState": {"terminated": life},
    }
    ranked = world.diagnose(tmp_path)
    assert [(each.finding.code, each.follows_from) for each in ranked] == [
        ("CW107", ()),
        ("CW108", ("CW107",)),
        ("CW303", ("CW107",)),
    ]
    assert "was restarted 17 times: no driver" in ranked[0].finding.evidence[0]


def test_a_replica_that_was_slow_and_therefore_not_ready_is_not_called_cold(tmp_path):
    world = small()
    world.service("serving/resnet", "resnet-a", "resnet-b", p99=spiking(0.05, 3.0, slice(40, 44)))
    world.pods["resnet-b"]["status"]["conditions"][2]["lastTransitionTime"] = at(605)
    assert [each.finding.code for each in world.diagnose(tmp_path)] == []


def test_a_lost_node_is_named_without_an_agent_to_blame(tmp_path):
    world = without_cardwise(**{"nvidia.com/gpu": "1"})
    told = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    world.nodes["a"]["status"]["conditions"] = [copy.copy(told)]
    (only,) = world.diagnose(tmp_path)
    assert only.finding.cause.startswith("node a is not Ready")
    assert "agent (" not in only.finding.action
