"""``cardwise mig`` on the fake driver, as a process: what it shows, what it refuses, and what is left when it fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cardwise.adapters.journal import Journal, Row, State
from cardwise.adapters.nvml.driver import Driver
from cardwise.core.card.handover import Grant
from tests.fakes.nvml import Node, environment, load
from tests.fakes.nvml import scenario as nvml


class Machine:
    """A node of an H100 with MIG on, with an agent's journal."""

    def __init__(self, folder, monkeypatch, *models):
        load()
        self.state = folder / "state"
        self.nvml = Node(folder / "nvml", *models).mig(0)
        monkeypatch.setenv("FAKE_NVML_STATE", str(folder / "nvml"))
        self.env = environment()
        self.journal = Journal(self.state / "journal.db")

    def make(self, *wanted):
        with Driver() as driver:
            driver.facts()
            return [driver.create_instance(self.nvml.uuid(0), profile, start) for profile, start in wanted]

    def instances(self):
        with Driver() as driver:
            return [(each.profile, each.start) for each in driver.facts().cards[0].instances]

    def give(self, instance, pod="a"):
        """As if the agent had handed it over."""
        grant = Grant("slot-000", instance.uuid, 4096, 20)
        self.journal.put(Row("u0", "default", pod, "app", (grant,), (), State.READY))

    def run(self, *args, state=None):
        command = [sys.executable, "-m", "cardwise", "mig", *args, "--state-folder", str(state or self.state)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120, check=False)

    def plan(self, profiles, card=None):
        return self.run("plan", "--card", card or self.nvml.uuid(0), "--profiles", profiles)

    def apply(self, profiles):
        return self.run("apply", "--card", self.nvml.uuid(0), "--profiles", profiles, "--yes")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    made = Machine(tmp_path, monkeypatch, "H100", "T4", "A100-40")
    yield made
    made.journal.close()


SMALL, LARGE = (19, 0), (9, 4)  # 1g.10gb at 0, 3g.40gb at 4


def test_show_tells_cards_profiles_instances_and_what_uses_them(machine):
    small, large = machine.make(SMALL, LARGE)
    machine.give(large)
    machine.nvml.process(0, 41, 100, instance=large.gpu_instance)
    done = machine.run("show")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[-3:] for line in lines if line[0] == "card"] == [
        ["MIG", "is", "on"],
        ["MiB", "no", "MIG"],
        ["MIG", "is", "off"],
    ]
    assert "  profile   3g.40gb  40448 MiB  60 SMs  at most 2, at 0, 4" in done.stdout
    assert f"  instance  1g.10gb at 0  {small.uuid}  idle\n" in done.stdout
    used = f"  instance  3g.40gb at 4  {large.uuid}  in use by default/a, container app; process 41\n"
    assert used in done.stdout


def test_plan_says_what_would_be_done_and_does_nothing(machine):
    (small,) = machine.make(SMALL)
    done = machine.plan("3g.40gb,3g.40gb")
    assert done.stdout.splitlines() == [
        f"destroy  1g.10gb at 0 ({small.uuid})",
        "create   3g.40gb at 0",
        "create   3g.40gb at 4",
    ]
    assert (done.returncode, machine.instances()) == (0, [("1g.10gb", 0)])


def test_apply_does_it_only_with_yes(machine):
    args = ["--card", machine.nvml.uuid(0), "--profiles", "1g.10gb,3g.40gb"]
    done = machine.run("apply", *args)
    assert (done.returncode, machine.instances()) == (2, [])
    assert "nothing was changed; pass --yes" in done.stderr
    done = machine.run("apply", *args, "--yes")
    assert (done.returncode, machine.instances()) == (0, [("1g.10gb", 0), ("3g.40gb", 4)])
    done = machine.run("apply", *args, "--yes")
    assert (done.returncode, done.stdout) == (0, "nothing to do: the card is divided so\n")


def test_what_is_in_use_stays_and_the_rest_is_divided_around_it(machine):
    small, _ = machine.make(SMALL, LARGE)
    machine.give(small)
    assert machine.apply("1g.10gb,2g.20gb,2g.20gb").returncode == 0
    assert machine.instances()[0] == ("1g.10gb", 0)
    assert sorted(profile for profile, _ in machine.instances()) == ["1g.10gb", "2g.20gb", "2g.20gb"]


@pytest.mark.parametrize("by", ["the journal", "a process"])
@pytest.mark.parametrize("command", ["plan", "apply"])
def test_an_instance_in_use_is_not_destroyed(machine, by, command):
    small, _ = machine.make(SMALL, LARGE)
    if by == "the journal":
        machine.give(small)
    else:
        machine.nvml.process(0, 41, 100, instance=small.gpu_instance)
    done = getattr(machine, command)("7g.80gb")
    assert (done.returncode, done.stdout) == (2, "")
    user = "default/a, container app" if by == "the journal" else "process 41"
    assert f"refused: not wanted, but in use: 1g.10gb at 0 ({small.uuid}) by {user}" in done.stderr
    assert machine.instances() == [("1g.10gb", 0), ("3g.40gb", 4)]


def test_processes_that_cannot_be_told_count_as_use(machine):
    machine.make(SMALL)
    machine.nvml.fail(0, "nvmlDeviceGetComputeRunningProcesses_v3", nvml.NO_PERMISSION)
    assert "processes that the driver does not tell" in machine.apply("none").stderr
    assert machine.instances() == [("1g.10gb", 0)]


def test_what_was_half_made_is_cleared_first(machine):
    machine.nvml.fail(0, "nvmlGpuInstanceCreateComputeInstance", nvml.UNKNOWN)
    machine.nvml.fail(0, "nvmlGpuInstanceDestroy", nvml.UNKNOWN)
    with pytest.raises(Exception, match="Unknown Error"):
        machine.make(LARGE)
    machine.nvml.heal()
    assert "instance  3g.40gb at 4  half-made" in machine.run("show").stdout
    done = machine.apply("7g.80gb")
    assert done.stdout.splitlines()[0] == "clear    3g.40gb at 4, half-made"
    assert machine.instances() == [("7g.80gb", 0)]


def test_a_failure_midway_says_what_exists_now(machine):
    (small,) = machine.make(SMALL)
    machine.nvml.fail(0, "nvmlDeviceCreateGpuInstanceWithPlacement", nvml.UNKNOWN)
    done = machine.apply("7g.80gb")
    assert done.returncode == 1
    assert done.stdout == f"destroy  1g.10gb at 0 ({small.uuid})\n"
    assert done.stderr.startswith("it went only so far; the card has now\n  no instances\n")
    assert "error: card GPU-" in done.stderr
    assert "Unknown Error" in done.stderr


def test_without_the_agents_journal_nothing_is_done_but_shown(machine, tmp_path):
    machine.make(SMALL)
    card = machine.nvml.uuid(0)
    done = machine.run("apply", "--card", card, "--profiles", "none", "--yes", state=tmp_path / "elsewhere")
    assert (done.returncode, machine.instances()) == (2, [("1g.10gb", 0)])
    assert "the agent's journal cannot be read" in done.stderr
    done = machine.run("show", state=tmp_path / "elsewhere")
    assert done.returncode == 0
    assert "note: " in done.stderr
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("profiles", "card", "message"),
    [
        pytest.param("9g.40gb", 0, "the card has no profile 9g.40gb; it has 1g.10gb, ", id="profile"),
        pytest.param("", 0, "the card has no profile ", id="empty"),
        pytest.param("7g.80gb,1g.10gb", 0, "7g.80gb, 1g.10gb do not fit one card together", id="too much"),
        pytest.param("7g.80gb", 1, "refused: T4 has no MIG", id="no MIG"),
        pytest.param("7g.40gb", 2, "MIG is off; switching it on empties the card", id="MIG off"),
        pytest.param("7g.80gb", None, "this node has no card GPU-x; it has GPU-0", id="card"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(machine, profiles, card, message):
    done = machine.plan(profiles, "GPU-x" if card is None else machine.nvml.uuid(card))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_node_without_a_driver_says_so(machine):
    machine.nvml.init_fails(9)
    done = machine.run("show")
    assert done.returncode == 1
    assert "modprobe nvidia" in done.stderr
