"""The driver as the agent sees it: NVIDIA's own bindings, unmodified, over the fake library."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cardwise.adapters.nvml.driver import Driver
from cardwise.core.card import mig
from cardwise.core.card.facts import CardEvent, MemoryLimit, ProcessUse
from cardwise.core.placement.links import Link
from cardwise.errors import CardError, DriverError
from tests.fakes.nvml import HOUR_MS, OLD_DRIVER, Node, environment, load
from tests.fakes.nvml import scenario as nvml

ROOT = Path(__file__).resolve().parents[2]
CGROUP = "/kubepods/pod-a/main"
R615 = {"driver": "615.71.05", "cuda": 13040, "memory_limits": True}


@pytest.fixture
def node(tmp_path, monkeypatch):
    load()

    def made(*models, **driver):
        monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "node"))
        return Node(tmp_path / "node", *models, **driver)

    return made


@pytest.fixture
def opened(node, monkeypatch):
    """A node of the cards named, and its driver, open. The driver is closed at the end."""
    monkeypatch.setattr("cardwise.adapters.nvml.driver.WATCH_WITHIN_S", 60.0)  # what comes before it watches is lost
    drivers = []

    def made(*models, **driver):
        there = node(*models, **driver)
        drivers.append(Driver())
        drivers[-1].open()
        return there, drivers[-1]

    yield made
    for driver in drivers:
        driver.close()


def apart(code, there, without=(), **env):
    """Run code in a process of its own, which has the fake where a driver's library would be."""
    there.use(told := {**environment(without), "PYTHONPATH": f"{ROOT}/src", **env})
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


OPEN = "import json; from cardwise.adapters.nvml.driver import Driver; d = Driver(); d.open(); "


# ---------------------------------------------------------------------- facts


def test_the_driver_says_its_version_its_branch_and_its_cuda(opened):
    _, driver = opened("T4", driver="580.95.05", cuda=13000)
    facts = driver.facts()
    assert (facts.driver_version, facts.driver_branch, facts.cuda_version) == ("580.95.05", 580, 13000)


def test_a_card_has_its_model_as_a_token_and_its_memory_with_what_is_kept_back(opened):
    _, driver = opened("A100-80")
    card = driver.facts().cards[0]
    assert (card.model, card.memory_mib, card.reserved_mib) == ("A100-SXM4-80GB", 81920, 642)


def test_a_mixed_node_tells_each_card_in_the_drivers_order(opened):
    there, driver = opened("H100", "T4", "L4")
    cards = driver.facts().cards
    assert [(c.index, c.uuid, c.compute_capability) for c in cards] == [
        (0, there.uuid(0), (9, 0)),
        (1, there.uuid(1), (7, 5)),
        (2, there.uuid(2), (8, 9)),
    ]


def test_the_minor_number_is_not_taken_from_the_index(opened):
    there, driver = opened("T4")
    there.set(0, minor=5)
    assert driver.facts().cards[0].minor == 5


def test_the_numa_node_is_read_from_sysfs_under_the_cards_lower_case_address(node, tmp_path):
    node("T4").set(0, bus="00000000:AF:00.0")
    place = tmp_path / "sys/bus/pci/devices/0000:af:00.0"
    place.mkdir(parents=True)
    (place / "numa_node").write_text("1\n")
    with Driver(sys_root=tmp_path / "sys") as driver:
        assert driver.facts().cards[0].numa_node == 1


@pytest.mark.parametrize("told", ["-1\n", "", None], ids=["no node", "empty", "no file"])
def test_a_machine_without_numa_gives_no_numa_node(node, tmp_path, told):
    node("T4")
    place = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    place.mkdir(parents=True)
    if told is not None:
        (place / "numa_node").write_text(told)
    with Driver(sys_root=tmp_path / "sys") as driver:
        assert driver.facts().cards[0].numa_node is None


@pytest.mark.parametrize(
    ("level", "link"),
    [
        (nvml.SAME_BOARD, Link.PCIE_SWITCH),
        (nvml.ONE_SWITCH, Link.PCIE_SWITCH),
        (nvml.SWITCHES, Link.PCIE_SWITCH),
        (nvml.HOST_BRIDGE, Link.NUMA),
        (nvml.NUMA_NODE, Link.NUMA),
        (nvml.SYSTEM, Link.NODE),
    ],
)
def test_a_level_of_the_drivers_topology_becomes_a_distance(opened, level, link):
    there, driver = opened("T4", "T4")
    there.topology(0, 1, level)
    assert driver.facts().cards[0].links == (0, link)


def test_cards_on_nvlink_are_nearest_wherever_they_sit(opened):
    there, driver = opened("H100", "H100", "H100")
    there.nvlink(0, 2)
    assert driver.facts().cards[0].links == (0, Link.NODE, Link.NVLINK)


def test_links_are_left_out_where_the_topology_is_not_told(opened):
    there, driver = opened("T4", "T4")
    there.fail(0, "nvmlDeviceGetTopologyCommonAncestor", nvml.NOT_SUPPORTED)
    assert driver.facts().cards[0].links == ()


def test_a_card_that_is_lost_is_told_and_the_others_stay(opened):
    there, driver = opened("T4", "T4", "T4")
    there.lost(1)
    facts = driver.facts()
    assert [card.uuid for card in facts.cards] == [there.uuid(0), there.uuid(2)]
    assert facts.lost == (
        "1: nvmlDeviceGetHandleByIndex: GPU is lost: it has fallen off the bus: drain the node and reboot it",
    )


def test_a_card_lost_while_links_are_read_costs_the_links_alone(opened):
    there, driver = opened("T4", "T4")
    there.fail(0, "nvmlDeviceGetP2PStatus", nvml.GPU_IS_LOST)
    assert [len(card.links) for card in driver.facts().cards] == [0, 2]


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo_v2"]
)
def test_a_card_that_does_not_answer_is_lost_and_the_others_stay(node, call):
    there = node("T4", "T4", "T4").hang(1, call, HOUR_MS)
    driver = Driver(within_s=0.2)
    driver.open()
    facts = driver.facts()
    assert [card.index for card in facts.cards] == [0, 2]
    assert facts.lost == ("1: the driver has not answered for 0.2 s; restart the agent once nvidia-smi shows the card",)
    driver.close()  # releases nothing under the call that hangs
    there.heal()


def test_links_that_are_not_told_in_time_are_left_out(node):
    there = node("T4", "T4").hang(1, "nvmlDeviceGetTopologyCommonAncestor", HOUR_MS)
    driver = Driver(within_s=0.2)
    driver.open()
    facts = driver.facts()
    assert [len(card.links) for card in facts.cards] == [2, 0]
    there.heal()


def test_a_card_that_may_not_be_opened_says_so(opened):
    there, driver = opened("T4", "T4")
    there.fail(0, "nvmlDeviceGetHandleByIndex_v2", nvml.NO_PERMISSION)
    assert driver.facts().lost[0].startswith("0: nvmlDeviceGetHandleByIndex: Insufficient Permissions: the agent must")


def test_links_count_only_the_cards_that_are_there(opened):
    there, driver = opened("T4", "T4", "T4")
    there.lost(0)
    assert [len(card.links) for card in driver.facts().cards] == [2, 2]


def test_a_card_that_comes_back_is_a_card_again(opened):
    there, driver = opened("T4")
    there.lost(0)
    driver.facts()
    there.lost(0, lost=False)
    assert [card.uuid for card in driver.facts().cards] == [there.uuid(0)]


def test_a_card_without_mig_says_none_and_one_that_has_it_off_says_so(opened):
    _, driver = opened("T4", "A100-40")
    assert [card.mig for card in driver.facts().cards] == [None, False]


# ---------------------------------------------------------------------- the library


def test_a_missing_library_says_what_to_install(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    there = Node(tmp_path / "node", "T4")
    code = """
import json
from cardwise.adapters.nvml.driver import Driver
from cardwise.errors import DriverError
try:
    Driver().open()
except DriverError as error:
    print(json.dumps(str(error)))
"""
    assert "install the NVIDIA driver on this node" in apart(code, there, LD_LIBRARY_PATH=str(tmp_path))


@pytest.mark.parametrize(
    ("code", "advice"), [(nvml.MISMATCH, "restart the agent"), (9, "modprobe nvidia"), (nvml.UNKNOWN, "see nvidia-smi")]
)
def test_a_driver_that_does_not_start_says_what_to_do(node, code, advice):
    node("T4").init_fails(code)
    with pytest.raises(DriverError, match=advice):
        Driver().open()


def test_a_driver_that_was_replaced_under_us_is_no_fault_of_a_card(opened):
    there, driver = opened("T4")
    there.fail(nvml.EVERY_CARD, nvml.EVERY_CALL, nvml.MISMATCH)
    with pytest.raises(DriverError, match="restart the agent"):
        driver.sample(there.uuid(0))


def test_a_card_that_is_not_there_is_named(opened):
    _, driver = opened("T4")
    with pytest.raises(CardError, match="card GPU-none: the driver of this node has no such card"):
        driver.sample("GPU-none")


def test_the_adapter_does_not_load_numpy(tmp_path):
    there = Node(tmp_path / "node", "T4")
    assert apart(OPEN + "import sys; d.facts(); print(json.dumps('numpy' in sys.modules))", there) is False


# ---------------------------------------------------------------------- samples


def test_a_sample_has_load_clocks_heat_and_power(opened):
    there, driver = opened("H100")
    sample = driver.sample(there.uuid(0))
    assert (sample.gpu_util_pct, sample.memory_util_pct) == (40, 25)
    assert (sample.sm_clock_mhz, sample.memory_clock_mhz, sample.clock_event_bits) == (1980, 2619, 0)
    assert (sample.temperature_c, sample.margin_c) == (55, 32)
    assert (sample.power_w, sample.power_limit_w) == (420.0, 700.0)


def test_used_memory_leaves_out_what_the_driver_keeps_for_itself(opened):
    there, driver = opened("A100-40")
    there.set(0, used=1000 * nvml.MIB)
    sample = driver.sample(there.uuid(0))
    assert (sample.memory_used_mib, sample.memory_free_mib) == (1000, 40960 - 607 - 1000)


def test_a_part_of_a_mib_counts_as_used_and_not_as_free(opened):
    there, driver = opened("A100-40")
    there.set(0, used=1, reserved=0)
    sample = driver.sample(there.uuid(0))
    assert (sample.memory_used_mib, sample.memory_free_mib) == (1, 40959)


def test_a_hot_card_says_why_it_is_slow(opened):
    there, driver = opened("H100")
    there.hot(0)
    sample = driver.sample(there.uuid(0))
    assert (sample.clock_event_bits, sample.margin_c, sample.sm_clock_mhz) == (0x60, 0, 540)


def test_a_margin_below_zero_stays_below_zero(opened):
    there, driver = opened("H100")
    there.set(0, margin=-3)
    assert driver.sample(there.uuid(0)).margin_c == -3


def test_errors_of_memory_and_the_drivers_verdict_are_told(opened):
    there, driver = opened("A100-80")
    there.set(0, ecc_uncorrected=2, rows_pending=1, rows_failed=0, field_230=4)
    sample = driver.sample(there.uuid(0))
    assert (sample.ecc_uncorrected, sample.rows_pending, sample.rows_failed) == (2, True, False)
    assert sample.recovery_action == 4


def test_what_changes_on_the_node_is_in_the_next_sample(opened):
    there, driver = opened("T4")
    driver.sample(there.uuid(0))
    there.set(0, gpu_util=97)
    assert driver.sample(there.uuid(0)).gpu_util_pct == 97


def test_a_curve_moves_between_its_bounds(opened):
    there, driver = opened("T4")
    there.set(0, gpu_util=nvml.wave(20, 90, 0.05))
    seen = set()
    for _ in range(10):
        seen.add(driver.sample(there.uuid(0)).gpu_util_pct)
        time.sleep(0.003)
    assert len(seen) > 3
    assert 20 <= min(seen) <= max(seen) <= 90


def test_pcie_is_the_rate_between_two_samples(opened):
    there, driver = opened("H100")
    there.set(0, field_197=nvml.growing(1024 * 1000), field_198=nvml.growing(1024 * 5000))
    first = driver.sample(there.uuid(0))
    time.sleep(0.02)
    second = driver.sample(there.uuid(0))
    assert first.pcie_tx_kib_s is None
    assert second.pcie_tx_kib_s == pytest.approx(1000, rel=0.05)
    assert second.pcie_rx_kib_s == pytest.approx(5000, rel=0.05)


def test_a_pcie_counter_that_started_anew_gives_no_rate(opened):
    there, driver = opened("H100")
    there.set(0, field_197=5000)
    driver.sample(there.uuid(0))
    there.set(0, field_197=10)
    assert driver.sample(there.uuid(0)).pcie_tx_kib_s is None


def test_a_card_without_pcie_counters_is_not_measured_unless_asked_for(opened):
    there, driver = opened("T4")
    there.hang(0, "nvmlDeviceGetPcieThroughput", 60_000)
    assert driver.sample(there.uuid(0)).pcie_tx_kib_s is None


def test_pcie_is_measured_where_that_is_asked_for(node):
    there = node("T4")
    with Driver(measure_pcie=True) as driver:
        sample = driver.sample(there.uuid(0))
    assert (sample.pcie_tx_kib_s, sample.pcie_rx_kib_s) == (120000, 340000)


def test_what_a_card_does_not_know_is_none_and_named(opened):
    there, driver = opened("T4")
    sample = driver.sample(there.uuid(0))
    assert sample.rows_pending is None
    assert driver.untold(there.uuid(0)) == {"nvmlDeviceGetRemappedRows": "Not Supported"}


def test_what_a_card_refused_is_not_asked_again(opened):
    there, driver = opened("T4")
    there.set(0, power_mw=None)
    driver.sample(there.uuid(0))
    there.set(0, power_mw=50_000)
    assert driver.sample(there.uuid(0)).power_w is None


def test_what_a_card_refused_is_asked_anew_after_the_facts_are(opened):
    there, driver = opened("T4")
    there.set(0, power_mw=None)
    driver.sample(there.uuid(0))
    there.set(0, power_mw=50_000)
    driver.facts()
    assert driver.sample(there.uuid(0)).power_w == 50.0


def test_one_cards_refusal_is_not_the_others(opened):
    there, driver = opened("T4", "T4")
    there.set(0, power_mw=None)
    assert [driver.sample(uuid).power_w for uuid in there.uuids] == [None, 42.0]


def test_a_call_that_is_not_permitted_is_told_and_the_rest_still_read(opened):
    there, driver = opened("T4")
    there.fail(0, "nvmlDeviceGetPowerUsage", nvml.NO_PERMISSION)
    assert driver.sample(there.uuid(0)).temperature_c == 55
    assert driver.untold(there.uuid(0))["nvmlDeviceGetPowerUsage"] == "Insufficient Permissions"


def test_a_lost_card_fails_by_name_and_the_others_go_on(opened):
    there, driver = opened("T4", "T4")
    there.lost(0)
    with pytest.raises(CardError, match=f"card {there.uuid(0)}: .*GPU is lost"):
        driver.sample(there.uuid(0))
    assert driver.sample(there.uuid(1)).gpu_util_pct == 40


def test_an_unknown_error_of_one_call_fails_the_card(opened):
    there, driver = opened("T4")
    there.fail(0, "nvmlDeviceGetClockInfo", nvml.UNKNOWN)
    with pytest.raises(CardError, match="nvmlDeviceGetClockInfo: Unknown Error"):
        driver.sample(there.uuid(0))


# ---------------------------------------------------------------------- processes


def test_an_idle_card_has_no_processes(opened):
    there, driver = opened("T4")
    assert driver.sample(there.uuid(0)).processes == ()


def test_processes_have_their_memory_and_their_sm_time(opened):
    there, driver = opened("T4")
    there.process(0, 41, 1000, sm=30).process(0, 42, 2000)
    assert driver.sample(there.uuid(0)).processes == (
        ProcessUse(41, 1000, sm_pct=30),
        ProcessUse(42, 2000, sm_pct=0),
    )


def test_clients_of_mps_are_told_apart(opened):
    there, driver = opened("T4")
    there.process(0, 1, 30, sm=5).process(0, 41, 1000, mps=True, sm=60)
    assert driver.sample(there.uuid(0)).processes == (
        ProcessUse(1, 30, sm_pct=5),
        ProcessUse(41, 1000, mps=True, sm_pct=60),
    )


def test_a_process_in_both_lists_is_one_client_of_mps(opened):
    there, driver = opened("T4")
    there.process(0, 41, 1000).process(0, 41, 1000, mps=True)
    assert driver.sample(there.uuid(0)).processes == (ProcessUse(41, 1000, mps=True),)


def test_an_idle_client_of_mps_has_no_sm_time_rather_than_none(opened):
    there, driver = opened("T4")
    there.process(0, 1, 30, sm=80).process(0, 41, 1000, mps=True)
    assert [use.sm_pct for use in driver.sample(there.uuid(0)).processes] == [80, None]


def test_a_process_whose_memory_is_not_told_is_there_all_the_same(opened):
    there, driver = opened("T4")
    there.process(0, 41, None)
    assert driver.sample(there.uuid(0)).processes[0].memory_mib is None


def test_a_process_that_ended_is_gone_from_the_next_sample(opened):
    there, driver = opened("T4")
    there.process(0, 41, 10).process(0, 42, 10)
    driver.sample(there.uuid(0))
    there.gone(41)
    assert [use.pid for use in driver.sample(there.uuid(0)).processes] == [42]


def test_sm_time_that_cannot_be_is_left_out(opened):
    there, driver = opened("T4")
    there.process(0, 41, 10, sm=4000)
    assert driver.sample(there.uuid(0)).processes[0].sm_pct is None


def test_processes_that_may_not_be_listed_are_none_and_not_nobody(opened):
    there, driver = opened("T4")
    there.fail(0, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.NO_PERMISSION)
    assert driver.sample(there.uuid(0)).processes is None


# ---------------------------------------------------------------------- events


def test_an_xid_comes_with_its_card_and_number(opened):
    there, driver = opened("T4", "T4")
    driver.events(0)
    there.xid(1, 79)
    assert driver.events(1000) == [CardEvent(there.uuid(1), "xid", 79)]


def test_what_happened_before_the_first_call_is_not_told(opened):
    there, driver = opened("T4")
    there.xid(0, 79)
    assert driver.events(0) == []


def test_a_burst_comes_in_one_list_and_in_order(opened):
    there, driver = opened("T4", "T4")
    driver.events(0)
    there.xid(0, 13)
    there.xid(1, 31)
    there.xid(0, 45)
    assert [(event.uuid, event.xid) for event in driver.events(1000)] == [
        (there.uuid(0), 13),
        (there.uuid(1), 31),
        (there.uuid(0), 45),
    ]


def test_no_event_is_an_empty_list_after_the_time_given(opened):
    _, driver = opened("T4")
    before = time.monotonic()
    assert driver.events(50) == []
    assert time.monotonic() - before >= 0.05


def test_an_event_within_a_mig_instance_names_it(opened):
    there, driver = opened("A100-40")
    driver.events(0)
    there.xid(0, 94, instance=3)
    assert driver.events(1000)[0].gpu_instance == 3


@pytest.mark.parametrize(("bits", "kind"), [(nvml.RECOVERY, "recovery-action"), (nvml.DOUBLE_BIT, "double-bit-ecc")])
def test_other_events_have_their_kind_and_no_xid(opened, bits, kind):
    there, driver = opened("H100")
    driver.events(0)
    there.event(0, bits, 7)
    assert driver.events(1000) == [CardEvent(there.uuid(0), kind)]


def test_the_xid_of_a_card_that_falls_off_the_bus_still_names_the_card(opened):
    there, driver = opened("T4", "T4")
    driver.events(0)
    there.xid(1, 79)
    there.lost(1)
    assert driver.events(1000) == [CardEvent(there.uuid(1), "xid", 79)]


def test_a_card_that_cannot_be_watched_is_told_and_the_others_are_watched(opened):
    there, driver = opened("T4", "T4")
    there.set(0, event_types=None)
    driver.events(0)
    there.xid(1, 13)
    assert [event.uuid for event in driver.events(1000)] == [there.uuid(1)]
    assert driver.unwatched() == {there.uuid(0): "nvmlDeviceGetSupportedEventTypes: Not Supported"}


def test_a_card_that_tells_no_xids_counts_as_unwatched(opened):
    there, driver = opened("T4")
    there.set(0, event_types=0x10)
    driver.events(0)
    assert driver.unwatched() == {there.uuid(0): "it tells no Xid errors"}


def test_a_failed_wait_is_an_error_and_the_next_call_watches_anew(opened):
    there, driver = opened("T4", "T4")
    driver.events(0)
    there.fail(nvml.EVERY_CARD, "nvmlEventSetWait_v2", nvml.GPU_IS_LOST)
    with pytest.raises(DriverError, match="no events of cards: GPU is lost"):
        driver.events(0)
    there.heal().lost(0)
    driver.events(0)
    there.xid(1, 13)
    assert [event.uuid for event in driver.events(1000)] == [there.uuid(1)]
    assert list(driver.unwatched()) == [there.uuid(0)]


# ---------------------------------------------------------------------- exclusive mode, memory limits


def test_a_card_is_made_exclusive_and_shared_again(opened):
    there, driver = opened("T4")
    driver.set_exclusive(there.uuid(0), True)
    assert driver.sample(there.uuid(0)).compute_mode == 3
    driver.set_exclusive(there.uuid(0), False)
    assert driver.sample(there.uuid(0)).compute_mode == 0


def test_exclusive_mode_of_one_card_is_not_the_others(opened):
    there, driver = opened("T4", "T4")
    driver.set_exclusive(there.uuid(0), True)
    assert driver.sample(there.uuid(1)).compute_mode == 0


def test_what_one_process_sets_another_sees(opened):
    there, driver = opened("T4", **R615)
    driver.set_exclusive(there.uuid(0), True)
    driver.set_memory_limit(there.uuid(0), CGROUP, None, 4096)
    told = f"d.sample({there.uuid(0)!r}).compute_mode, d.memory_limit({there.uuid(0)!r}, {CGROUP!r}).hard_mib"
    assert apart(OPEN + f"print(json.dumps([{told}]))", there) == [3, 4096]


def test_exclusive_mode_without_permission_says_how_the_agent_must_run(opened):
    there, driver = opened("T4")
    there.fail(0, "nvmlDeviceSetComputeMode", nvml.NO_PERMISSION)
    with pytest.raises(CardError, match="the agent must run as root"):
        driver.set_exclusive(there.uuid(0), True)


def test_a_memory_limit_is_read_back_with_what_is_held(opened):
    there, driver = opened("H100", **R615)
    there.held(CGROUP, 3000)
    driver.set_memory_limit(there.uuid(0), CGROUP, 8000, 8192)
    assert driver.memory_limit(there.uuid(0), CGROUP) == MemoryLimit(8000, 8192, 3000)


def test_a_cgroup_without_a_limit_says_so(opened):
    there, driver = opened("H100", **R615)
    assert driver.memory_limit(there.uuid(0), CGROUP) == MemoryLimit(None, None, 0)


def test_a_memory_limit_is_taken_away_again(opened):
    there, driver = opened("H100", **R615)
    driver.set_memory_limit(there.uuid(0), CGROUP, None, 8192)
    driver.set_memory_limit(there.uuid(0), CGROUP, None, None)
    assert driver.memory_limit(there.uuid(0), CGROUP).hard_mib is None


def test_a_memory_limit_is_of_one_card_and_one_cgroup(opened):
    there, driver = opened("H100", "H100", **R615)
    driver.set_memory_limit(there.uuid(0), CGROUP, None, 8192)
    assert driver.memory_limit(there.uuid(1), CGROUP).hard_mib is None
    assert driver.memory_limit(there.uuid(0), CGROUP + "2").hard_mib is None


def test_a_driver_that_limits_memory_says_so(opened):
    _, driver = opened("H100", **R615)
    assert driver.facts().memory_limits


def test_a_driver_that_cannot_limit_memory_says_so_and_refuses(opened):
    there, driver = opened("H100")
    assert not driver.facts().memory_limits
    with pytest.raises(CardError, match="nvmlDeviceSetMemoryLimits_v1: Function Not Found"):
        driver.set_memory_limit(there.uuid(0), CGROUP, None, 8192)


def test_a_node_of_mig_cards_alone_has_no_memory_limits(opened):
    there, driver = opened("H100", **R615)
    there.mig(0)
    assert not driver.facts().memory_limits


# ---------------------------------------------------------------------- MIG


@pytest.fixture
def divided(opened):
    there, driver = opened("A100-80")
    there.mig(0)
    driver.facts()
    return there, driver, there.uuid(0)


def test_a_card_in_mig_mode_offers_the_profiles_that_nvidia_documents(divided):
    _, driver, uuid = divided
    offered = {profile.name: profile for profile in driver.mig_profiles(uuid)}
    assert offered.pop("1g.10gb+me").most == 1
    assert sorted(offered.values(), key=lambda p: p.name) == sorted(mig.TABLES["A100-80"], key=lambda p: p.name)


def test_an_instance_is_made_where_it_was_wanted(divided):
    _, driver, uuid = divided
    made = driver.create_instance(uuid, 9, 4)
    assert (made.profile, made.memory_mib, made.start, made.size) == ("3g.40gb", 40192, 4, 4)
    assert made.uuid.startswith("MIG-")


def test_instances_are_facts_in_the_order_of_their_place(divided):
    _, driver, uuid = divided
    later, first = driver.create_instance(uuid, 9, 4), driver.create_instance(uuid, 19, 0)
    assert driver.facts().cards[0].instances == (first, later)


def test_a_whole_card_of_small_instances_is_listed(divided):
    _, driver, uuid = divided
    made = [driver.create_instance(uuid, 19, start) for start in range(7)]
    assert driver.facts().cards[0].instances == tuple(made)
    assert len({instance.uuid for instance in made}) == 7


def test_overlapping_instances_are_refused(divided):
    _, driver, uuid = divided
    driver.create_instance(uuid, 9, 0)
    with pytest.raises(CardError, match=r"Insufficient Resources: there is no room for it"):
        driver.create_instance(uuid, 19, 3)


def test_a_start_that_the_profile_does_not_have_is_refused(divided):
    _, driver, uuid = divided
    with pytest.raises(CardError, match="MIG profile 9 cannot begin at memory slice 2"):
        driver.create_instance(uuid, 9, 2)


def test_the_drivers_enumeration_is_not_taken_for_a_profile(divided):
    _, driver, uuid = divided
    with pytest.raises(CardError, match="offers no MIG profile 2"):
        driver.create_instance(uuid, 2, 0)


def test_a_destroyed_instance_leaves_its_place(divided):
    _, driver, uuid = divided
    driver.destroy_instance(uuid, driver.create_instance(uuid, 0, 0))
    assert driver.create_instance(uuid, 0, 0).profile == "7g.80gb"


def test_an_instance_in_use_is_not_destroyed_and_stays_whole(divided):
    there, driver, uuid = divided
    made = driver.create_instance(uuid, 14, 2)
    there.process(0, 41, 100, instance=made.gpu_instance)
    with pytest.raises(CardError, match="a process still holds it"):
        driver.destroy_instance(uuid, made)
    assert driver.facts().cards[0].instances == (made,)


def test_a_creation_that_fails_half_way_leaves_nothing(divided):
    there, driver, uuid = divided
    there.fail(0, "nvmlGpuInstanceCreateComputeInstance", nvml.UNKNOWN)
    with pytest.raises(CardError, match="nvmlGpuInstanceCreateComputeInstance: Unknown Error"):
        driver.create_instance(uuid, 9, 0)
    assert driver.facts().cards[0].instances == ()


def test_what_a_crash_left_half_made_is_seen_and_can_be_destroyed(divided):
    there, driver, uuid = divided
    there.fail(0, "nvmlGpuInstanceCreateComputeInstance", nvml.UNKNOWN)
    there.fail(0, "nvmlGpuInstanceDestroy", nvml.UNKNOWN)
    with pytest.raises(CardError):
        driver.create_instance(uuid, 9, 0)
    there.heal()
    (half,) = driver.facts().cards[0].instances
    assert (half.uuid, half.compute_instance, half.profile) == ("", -1, "3g.40gb")
    driver.destroy_instance(uuid, half)
    assert driver.facts().cards[0].instances == ()


def test_a_process_in_an_instance_says_which(divided):
    there, driver, uuid = divided
    made = driver.create_instance(uuid, 9, 0)
    there.process(0, 41, 100, instance=made.gpu_instance)
    assert driver.sample(uuid).processes == (ProcessUse(41, 100, gpu_instance=made.gpu_instance),)


def test_what_mig_forbids_is_none_and_the_rest_is_read(divided):
    _, driver, uuid = divided
    sample = driver.sample(uuid)
    assert (sample.gpu_util_pct, sample.rows_pending, sample.ecc_uncorrected) == (None, None, None)
    assert (sample.temperature_c, sample.recovery_action) == (55, 0)


def test_instances_made_by_one_process_are_seen_by_another(divided):
    there, driver, uuid = divided
    made = driver.create_instance(uuid, 5, 0)
    assert apart(OPEN + "print(json.dumps(d.facts().cards[0].instances[0].uuid))", there) == made.uuid


def test_instances_cannot_be_made_where_mig_is_off(opened):
    there, driver = opened("A100-80")
    with pytest.raises(CardError, match="Not Supported"):
        driver.create_instance(there.uuid(0), 19, 0)


# ---------------------------------------------------------------------- an old driver


def test_an_old_driver_reads_memory_heat_and_clocks_the_old_way(tmp_path):
    there = Node(tmp_path / "node", "A100-40", driver="470.256.02", cuda=11040).set(0, clock_events=4)
    code = f"s = d.sample({there.uuid(0)!r}); "
    told = "s.memory_used_mib, s.temperature_c, s.clock_event_bits, s.margin_c"
    assert apart(OPEN + code + f"print(json.dumps([{told}]))", there, OLD_DRIVER) == [10240 + 607, 55, 4, None]


def test_an_old_driver_keeps_nothing_back_as_far_as_it_tells_and_has_no_limits(tmp_path):
    there = Node(tmp_path / "node", "A100-40", driver="470.256.02", cuda=11040)
    code = "f = d.facts(); print(json.dumps([f.cards[0].reserved_mib, f.memory_limits]))"
    assert apart(OPEN + code, there, OLD_DRIVER) == [0, False]


@pytest.mark.parametrize("model", ["A100-40", "A100-80", "H100"])
def test_an_old_driver_does_not_name_profiles_and_they_are_named_all_the_same(tmp_path, model):
    there = Node(tmp_path / "node", model, driver="470.256.02", cuda=11040).mig(0)
    code = "print(json.dumps([p.name for p in d.mig_profiles(d.facts().cards[0].uuid)]))"
    named = {each.name for table in mig.TABLES.values() for each in table}
    assert set(apart(OPEN + code, there, OLD_DRIVER)) <= named


def test_an_old_driver_makes_instances_too(tmp_path):
    there = Node(tmp_path / "node", "A100-40", driver="470.256.02", cuda=11040).mig(0)
    code = f"print(json.dumps(d.create_instance({there.uuid(0)!r}, 9, 4).profile))"
    assert apart(OPEN + code, there, OLD_DRIVER) == "3g.20gb"
