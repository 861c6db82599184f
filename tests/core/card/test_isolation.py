"""The ladder claims no more than it holds, and the advice says what it rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.core.card.advice import Workload, advise
from cardwise.core.card.facts import CardFacts, MigInstance, NodeFacts
from cardwise.core.card.isolation import (
    Guarantee,
    Hold,
    Mps,
    Offer,
    Standing,
    Step,
    Unoffered,
    guarantee,
    stand,
)
from cardwise.core.claim import LatencyClass
from cardwise.core.request import Isolation

ALL = Offer(
    mps=frozenset(Mps), cgroup_v2=True, memory_limits=True, can_mount=True, exclusive=True, host_paths_refused=True
)
MPS_2 = Offer(mps=frozenset({Mps.V2}), cgroup_v2=True, can_mount=True, exclusive=True)
A100 = "NVIDIA A100-SXM4-80GB"
BINDS, ASKS, NONE = Hold.BINDS, Hold.ASKS, Hold.NONE


def card(mig=False, capability=(8, 0), model="NVIDIA A100-SXM4-80GB", instances=()):
    return CardFacts(
        "GPU-0", model, 0, 0, "00000000:07:00.0", 81920, compute_capability=capability, mig=mig, instances=instances
    )


def node(branch=615, cuda=13040, limits=None):
    return NodeFacts(f"{branch}.10.01", cuda, (), memory_limits=branch >= 615 if limits is None else limits)


def stands(*args, **more):
    found = stand(*args, **more)
    assert isinstance(found, Standing), found
    return found


# ---------------------------------------------------------------- the ladder


@pytest.mark.parametrize(
    ("branch", "cuda", "offer", "step", "mode", "held"),
    [
        pytest.param(
            615,
            13040,
            ALL,
            Step.KERNEL_MEMORY_AND_NAMESPACE,
            Isolation.MPS,
            Guarantee(BINDS, BINDS, NONE),
            id="newest driver",
        ),
        pytest.param(
            610,
            13030,
            Offer(frozenset({Mps.V2, Mps.STATIC}), True, False, True),
            Step.SM_PARTITION,
            Isolation.MPS,
            Guarantee(ASKS, ASKS, ASKS),
            id="static partitions, faults in part",
        ),
        pytest.param(
            590,
            13010,
            Offer(frozenset({Mps.V2, Mps.STATIC}), True, False, True),
            Step.SM_PARTITION,
            Isolation.MPS,
            Guarantee(ASKS, ASKS, NONE),
            id="static partitions",
        ),
        pytest.param(570, 12080, MPS_2, Step.MPS_ENV, Isolation.MPS, Guarantee(ASKS, ASKS, NONE), id="MPS by env"),
        pytest.param(
            615,
            13040,
            Offer(cgroup_v2=True, memory_limits=True),
            Step.KERNEL_MEMORY_AND_TIME_SLICING,
            Isolation.TIME_SLICING,
            Guarantee(BINDS, NONE, ASKS),
            id="no MPS, but the driver's memory limit",
        ),
        pytest.param(
            570, 12080, Offer(), Step.TIME_SLICING, Isolation.TIME_SLICING, Guarantee(NONE, NONE, ASKS), id="nothing"
        ),
    ],
)
def test_auto_takes_the_best_step_and_says_what_it_holds(branch, cuda, offer, step, mode, held):
    found = stands(card(), node(branch, cuda), offer)
    assert (found.step, found.mode, found.guarantee) == (step, mode, held)


def test_why_not_the_better_steps_is_told_with_numbers():
    found = stands(card(), node(570, 12080), MPS_2)
    assert [(ground.step, ground.text) for ground in found.grounds] == [
        (Step.MIG, "MIG is off; turning it on empties the card, so it is the operator's to do"),
        (
            Step.KERNEL_MEMORY_AND_NAMESPACE,
            "driver 570 is older than 615, the first to limit a container's memory",
        ),
        (Step.KERNEL_MEMORY_AND_NAMESPACE, "MPS v3 is not there (v2)"),
        (Step.SM_PARTITION, "CUDA 12.8 is older than 13.1, the first with static partitions"),
        (Step.SM_PARTITION, "MPS static is not there (v2)"),
    ]


@pytest.mark.parametrize(
    ("facts", "machine", "offer", "wish", "text"),
    [
        pytest.param(
            card(capability=(6, 1), mig=None, model="Tesla P40"),
            node(),
            ALL,
            "mps-env",
            "compute capability 6.1 is below 7.0, the first whose MPS has limits",
            id="before Volta",
        ),
        pytest.param(
            card(capability=(7, 5), mig=None),
            node(),
            ALL,
            "sm-partition",
            "compute capability 7.5 is below 8.0, the first with static partitions",
            id="before Ampere",
        ),
        pytest.param(card(mig=None, model="NVIDIA L40S"), node(), ALL, "mig", "NVIDIA L40S has no MIG", id="no MIG"),
        pytest.param(
            card(),
            node(limits=False),
            ALL,
            "kernel-memory-and-time-slicing",
            "driver 615 refuses to limit a container's memory on this node",
            id="limits refused",
        ),
        pytest.param(
            card(),
            node(),
            Offer(memory_limits=True),
            "kernel-memory-and-time-slicing",
            "the node has cgroup v1; memory limits need v2",
            id="cgroup v1",
        ),
        pytest.param(
            card(),
            node(),
            Offer(mps=frozenset(Mps)),
            "mps-env",
            "containers cannot be given MPS's directory: neither by CDI nor by mount",
            id="no mounts",
        ),
        pytest.param(
            card(mig=True),
            node(),
            ALL,
            "whole",
            "MIG is on: the card can be shared by its instances only, and turning MIG off empties it",
            id="MIG on",
        ),
    ],
)
def test_a_demand_that_cannot_be_met_is_refused_and_never_replaced_by_less(facts, machine, offer, wish, text):
    found = stand(facts, machine, offer, wish)
    assert isinstance(found, Unoffered)
    assert text in [ground.text for ground in found.grounds]
    assert {ground.step for ground in found.grounds} == {Step(wish)}


def test_a_demand_that_can_be_met_is_met_exactly():
    assert stands(card(), node(), ALL, "time-slicing").guarantee == Guarantee(NONE, NONE, ASKS)
    assert stands(card(), node(), ALL, "whole").mode is Isolation.WHOLE


def test_a_wish_that_is_no_step_is_named():
    with pytest.raises(ValueError, match="no isolation is called 'mps'; write one of auto, whole, mig, kernel-"):
        stand(card(), node(), ALL, "mps")


def test_a_card_with_mig_on_is_shared_by_its_instances():
    instance = MigInstance("MIG-1", "3g.40gb", 40192, 1, 0, 0, 4)
    found = stands(card(mig=True, instances=(instance,)), node(570, 12080), MPS_2)
    assert (found.step, found.guarantee, found.most_slots) == (Step.MIG, Guarantee(BINDS, BINDS, BINDS), 1)


@pytest.mark.parametrize("lacks", ["exclusive", "host_paths_refused"])
def test_compute_only_asks_where_a_container_can_miss_mps_or_reach_anothers_pipe(lacks):
    offer = Offer(**{name: getattr(ALL, name) for name in ALL.__slots__} | {lacks: False})
    found = stands(card(), node(), offer)
    assert found.guarantee == Guarantee(BINDS, ASKS, NONE)


def test_the_drivers_memory_limit_also_binds_under_the_older_mps():
    offer = Offer(frozenset({Mps.V2}), cgroup_v2=True, memory_limits=True, can_mount=True)
    found = stands(card(), node(), offer)
    assert (found.step, found.kernel_memory, found.guarantee.memory) == (Step.MPS_ENV, True, BINDS)


@pytest.mark.parametrize(("cuda", "most"), [(12080, 48), (13000, 48), (13010, 60), (13040, 60)])
def test_mps_takes_so_many_clients(cuda, most):
    assert stands(card(), node(570, cuda), MPS_2, "mps-env").most_slots == most
    assert stands(card(), node(570, cuda), MPS_2, "time-slicing").most_slots is None
    assert stands(card(), node(570, cuda), MPS_2, "whole").most_slots == 1


offers = st.builds(
    Offer,
    mps=st.frozensets(st.sampled_from(Mps)),
    cgroup_v2=st.booleans(),
    memory_limits=st.booleans(),
    can_mount=st.booleans(),
    exclusive=st.booleans(),
    host_paths_refused=st.booleans(),
)
nodes = st.builds(node, st.integers(0, 700), st.sampled_from([11080, 12080, 13010, 13040]), st.booleans())
facts_of_cards = st.builds(
    card, st.sampled_from([None, False, True]), st.sampled_from([(6, 1), (7, 0), (8, 0), (9, 0)])
)
wishes = st.sampled_from(["auto", *(step.value for step in Step)])


@given(facts_of_cards, nodes, offers, wishes)
def test_no_standing_claims_to_bind_what_it_does_not(facts, machine, offer, wish):
    found = stand(facts, machine, offer, wish)
    if isinstance(found, Unoffered):
        assert wish != "auto"
        assert found.grounds
        return
    held = found.guarantee
    if found.step not in {Step.WHOLE, Step.MIG}:
        assert held.faults is not BINDS
        if held.memory is BINDS:
            assert machine.driver_branch >= 615
            assert machine.memory_limits
            assert offer.memory_limits
            assert offer.cgroup_v2
        if held.compute is BINDS:
            assert found.step is Step.KERNEL_MEMORY_AND_NAMESPACE
            assert offer.exclusive
            assert offer.host_paths_refused


@given(facts_of_cards, nodes, offers)
def test_auto_always_finds_a_step_and_grounds_for_every_better_one(facts, machine, offer):
    found = stands(facts, machine, offer)
    order = [Step.MIG, *(step for step in Step if step not in {Step.MIG, Step.WHOLE})]
    assert {ground.step for ground in found.grounds} == set(order[: order.index(found.step)])


def test_a_partition_holds_faults_in_part_from_r610_on():
    assert guarantee(Step.SM_PARTITION, driver_branch=609).faults is NONE
    assert guarantee(Step.SM_PARTITION, driver_branch=610).faults is ASKS


# ---------------------------------------------------------------- advice


LS, BE = LatencyClass.SENSITIVE, LatencyClass.BEST_EFFORT


@pytest.mark.parametrize(
    ("load", "step", "ground"),
    [
        pytest.param(Workload(services=1), Step.WHOLE, "one service per card", id="alone"),
        pytest.param(
            Workload(memory_mib=100_000, card_memory_mib=81_920), Step.WHOLE, "it needs 2 whole cards", id="too large"
        ),
        pytest.param(
            Workload(memory_mib=50_000, card_memory_mib=81_920),
            Step.WHOLE,
            "two services of 50000 MiB do not fit a card of 81920 MiB",
            id="no two fit",
        ),
        pytest.param(Workload(contained=True, model=A100), Step.MIG, "faults must stay", id="contained"),
        pytest.param(
            Workload(contained=True, model="NVIDIA L40S", driver_branch=615),
            Step.WHOLE,
            "NVIDIA L40S has no MIG",
            id="contained without MIG",
        ),
        pytest.param(
            Workload(contained=True, model=A100, memory_mib=40_500, card_memory_mib=81_920),
            Step.WHOLE,
            "not two instances that hold 40500 MiB each",
            id="contained, too large for two instances",
        ),
        pytest.param(Workload(tenants=True, model=A100), Step.MIG, "the code is not your own", id="tenants"),
        pytest.param(
            Workload(tenants=True, model="NVIDIA L40S", driver_branch=615),
            Step.KERNEL_MEMORY_AND_NAMESPACE,
            "the driver itself limits",
            id="tenants, newest driver",
        ),
        pytest.param(
            Workload(tenants=True, model="NVIDIA L40S", driver_branch=570),
            Step.WHOLE,
            "driver 570 is older than 615, so MPS limits are in the container's hands",
            id="tenants, old driver",
        ),
        pytest.param(
            Workload(latency=BE, peak_over_mean=10),
            Step.TIME_SLICING,
            "the peak is 10 times the mean",
            id="seldom at once",
        ),
        pytest.param(
            Workload(latency=BE, peak_over_mean=10, driver_branch=615),
            Step.KERNEL_MEMORY_AND_TIME_SLICING,
            "best-effort",
            id="seldom at once, newest driver",
        ),
        pytest.param(
            Workload(latency=LS, peak_over_mean=1.2, model=A100, services=7),
            Step.MIG,
            "the peak is only 1.2 times the mean",
            id="flat and latency-sensitive",
        ),
        pytest.param(
            Workload(latency=LS, peak_over_mean=1.2, model=A100, services=8),
            Step.MPS_ENV,
            "latency-sensitive",
            id="flat, but more than instances",
        ),
        pytest.param(
            Workload(latency=LS, peak_over_mean=10, model=A100, driver_branch=590),
            Step.MPS_ENV,  # not static partitions, which the agent does not make yet
            "what one leaves idle another can use",
            id="peaks and latency-sensitive",
        ),
        pytest.param(Workload(latency=BE), Step.MPS_ENV, "small services fill the card together", id="best-effort"),
    ],
)
def test_the_first_rule_that_applies_decides_and_says_why(load, step, ground):
    advice = advise(load)
    assert advice.step is step
    assert ground in " | ".join(advice.grounds)


def test_memory_without_the_cards_own_is_told_as_not_looked_at():
    warnings = advise(Workload(services=4, memory_mib=30000, driver_branch=570)).warnings
    assert "the card's memory was not given: whether 4 x 30000 MiB fit was not looked at" in warnings


def test_mps_warns_of_what_it_does_not_hold():
    advice = advise(Workload(services=70, driver_branch=570))
    assert advice.services == 48
    assert advice.warnings == (
        "memory bandwidth and L2 are shared: watch P99, limits do not hold it",
        "a fatal fault of one container can end all others on the card",
        "limits are in the container's environment, and its code can lift them",
        "MPS takes 48 clients per card, and each process of a service is one",
        "the card is taken to have compute capability 7.0 or newer: MPS of older ones has no limits",
        "only 48 of 70 services fit one card this way",
    )


def test_mig_names_the_profile_and_its_waste():
    advice = advise(Workload(contained=True, services=9, memory_mib=9000, model=A100))
    assert advice.services == 7
    assert "1g.10gb holds a service and leaves 728 MiB of it unused" in advice.grounds
    assert "only 7 of 9 services fit one card this way" in advice.warnings


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (Workload(services=0), "services is too small: 0"),
        (Workload(memory_mib=-1), "memory_mib is too small: -1"),
        (Workload(peak_over_mean=0.5), "peak over mean is 0.5, must be 1 or more"),
        (Workload(peak_over_mean=float("nan")), "peak over mean is nan"),
    ],
)
def test_impossible_numbers_are_refused(load, text):
    with pytest.raises(ValueError, match=text):
        advise(load)


workloads = st.builds(
    Workload,
    latency=st.sampled_from(LatencyClass),
    services=st.integers(1, 100),
    memory_mib=st.integers(0, 200_000),
    peak_over_mean=st.none() | st.floats(1, 100),
    contained=st.booleans(),
    tenants=st.booleans(),
    model=st.sampled_from(["", A100, "NVIDIA H200", "NVIDIA L40S", "NVIDIA H100 NVL"]),
    card_memory_mib=st.sampled_from([0, 24_576, 81_920, 143_771]),
    mig=st.sampled_from([None, False, True]),
    driver_branch=st.sampled_from([0, 535, 570, 590, 610, 615]),
    host_paths_refused=st.booleans(),
)


@given(workloads)
def test_advice_keeps_what_was_demanded(load):
    advice = advise(load)
    assert advice.grounds
    assert 1 <= advice.services <= load.services
    if load.contained:
        assert advice.guarantee.faults is BINDS
    if load.tenants:
        assert advice.guarantee.memory is BINDS
    if advice.services < load.services and advice.step is not Step.WHOLE:
        assert f"only {advice.services} of {load.services} services fit one card this way" in advice.warnings
