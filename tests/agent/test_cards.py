"""One thread per card: what a call that does not return holds up, and what not."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict

import pytest

from cardwise.adapters.nvml.driver import Driver
from cardwise.agent.cards import Cards
from tests.clock import Clock
from tests.fakes.nvml import HOUR_MS, Node, load
from tests.fakes.nvml import scenario as nvml

SLOW = "nvmlDeviceGetPowerUsage"


class Counted:
    """A driver; begun: how many samples of each card were asked for. busy: held while one is taken, by card."""

    def __init__(self, driver):
        self.driver, self.begun, self.busy = driver, Counter(), defaultdict(threading.Lock)

    def sample(self, uuid):
        with self.busy[uuid]:
            self.begun[uuid] += 1
            return self.driver.sample(uuid)


class Watch:
    """A node, its driver, its cards sampled every hundredth of a second, and a clock that decides what is stuck."""

    def __init__(self, node):
        self.node, self.clock, self.driver = node, Clock(), Driver()
        self.driver.open()
        self.sampler = Counted(self.driver)
        self.cards = Cards(self.sampler, node.uuids, period_s=0.01, deadline_s=5.0, now_s=self.clock)

    def state(self, card):
        return self.cards.state(self.node.uuid(card))

    def until(self, what):
        """Wait for what the workers' threads will bring about; fails after forty seconds."""
        end = time.monotonic() + 40
        while not what():
            assert time.monotonic() < end, self.cards.states()
            time.sleep(0.002)

    def hung(self, card):
        """Let a card hang, and wait until it does: whatever is asked from now on does not return."""
        uuid = self.node.uuid(card)
        with self.sampler.busy[uuid]:  # so that no sample that has begun already is the one that hangs
            self.node.hang(card, SLOW, HOUR_MS)
            before = self.sampler.begun[uuid]
        self.until(lambda: self.sampler.begun[uuid] > before)

    def ended(self, card):
        """A card's worker ends, and has ended."""
        worker = self.cards._workers[self.node.uuid(card)]
        worker.stop()
        worker.thread.join(60)

    def end(self):
        self.node.heal()
        assert self.cards.close(60) == ()
        self.driver.close()


@pytest.fixture
def watch(tmp_path, monkeypatch):
    load()
    monkeypatch.setenv("FAKE_NVML_STATE", str(tmp_path / "node"))
    watch = Watch(Node(tmp_path / "node", "T4", "T4"))
    yield watch
    watch.end()


def test_a_card_has_no_sample_before_it_is_started(watch):
    state = watch.state(0)
    assert (state.sample, state.age_s, state.problem) == (None, None, "not sampled yet")


def test_every_card_is_sampled(watch):
    watch.cards.start()
    watch.until(lambda: all(state.sample for state in watch.cards.states().values()))
    assert [(state.sample.uuid, state.problem) for state in watch.cards.states().values()] == [
        (uuid, None) for uuid in watch.node.uuids
    ]


def test_samples_follow_the_card(watch):
    watch.cards.start()
    watch.node.set(0, gpu_util=91)
    watch.until(lambda: watch.state(0).sample and watch.state(0).sample.gpu_util_pct == 91)


def test_the_age_of_a_sample_grows_while_its_card_hangs(watch):
    watch.cards.start()
    watch.until(lambda: watch.state(0).sample)
    watch.hung(0)
    watch.clock.now_s += 3
    assert watch.state(0).age_s == 3


def test_a_call_within_the_deadline_is_no_problem(watch):
    watch.cards.start()
    watch.until(lambda: watch.state(0).sample)
    watch.hung(0)
    watch.clock.now_s += 5
    assert watch.state(0).problem is None


def test_a_card_that_does_not_answer_is_stuck_from_the_deadline_on_and_keeps_its_last_sample(watch):
    watch.cards.start()
    watch.until(lambda: watch.state(0).sample)
    watch.hung(0)
    watch.clock.now_s += 7
    state = watch.state(0)
    assert state.problem == f"card {watch.node.uuid(0)}: stuck: the driver has not answered for 7 s"
    assert state.stuck
    assert state.sample is not None


def test_the_other_cards_go_on_while_one_is_stuck(watch):
    watch.cards.start()
    watch.hung(0)
    watch.clock.now_s += 60
    watch.node.set(1, gpu_util=77)
    watch.until(lambda: watch.state(1).sample and watch.state(1).sample.gpu_util_pct == 77)
    assert not watch.state(1).stuck


def test_a_card_that_hangs_from_the_start_is_stuck_without_a_sample(watch):
    watch.node.hang(0, SLOW, HOUR_MS)
    watch.cards.start()
    watch.until(lambda: watch.sampler.begun[watch.node.uuid(0)])
    watch.clock.now_s += 6
    assert (watch.state(0).sample, watch.state(0).stuck) == (None, True)


def test_a_stuck_card_is_well_again_when_the_call_returns(watch):
    watch.cards.start()
    watch.hung(0)
    watch.clock.now_s += 60
    watch.node.heal()
    watch.until(lambda: watch.state(0).problem is None and watch.state(0).age_s == 0)


def test_a_stuck_card_costs_one_thread_however_long_it_is_stuck(watch):
    watch.cards.start()
    watch.hung(0)
    before = set(threading.enumerate())  # of a test before this one some may end meanwhile
    time.sleep(0.2)  # some twenty periods
    assert set(threading.enumerate()) <= before


def test_a_card_that_fails_says_why_and_keeps_its_last_sample(watch):
    watch.cards.start()
    watch.until(lambda: watch.state(0).sample)
    watch.node.lost(0)
    watch.until(lambda: watch.state(0).problem)
    assert "GPU is lost" in watch.state(0).problem
    assert watch.state(0).sample is not None
    assert watch.state(1).problem is None


def test_a_card_that_was_lost_is_well_again_with_the_next_sample(watch):
    watch.node.lost(0)
    watch.cards.start()
    watch.until(lambda: "GPU is lost" in (watch.state(0).problem or ""))
    watch.node.lost(0, lost=False)
    watch.until(lambda: watch.state(0).problem is None)


def test_a_driver_replaced_under_us_is_a_problem_of_every_card(watch):
    watch.cards.start()
    watch.node.fail(nvml.EVERY_CARD, nvml.EVERY_CALL, nvml.MISMATCH)
    watch.until(lambda: all("restart the agent" in (s.problem or "") for s in watch.cards.states().values()))


def test_closing_ends_every_thread(watch):
    watch.cards.start()
    assert watch.cards.close(60) == ()
    assert not [worker for worker in watch.cards._workers.values() if worker.thread.is_alive()]


def test_closing_does_not_wait_for_a_stuck_card_and_names_it(watch):
    watch.cards.start()
    watch.hung(0)
    watch.ended(1)
    before = time.monotonic()
    assert watch.cards.close(0.1) == (watch.node.uuid(0),)
    assert time.monotonic() - before < 60  # the card hangs for an hour


def test_closing_what_was_never_started_is_nothing(watch):
    assert watch.cards.close() == ()


def test_threads_do_not_keep_the_process_alive(watch):
    watch.cards.start()
    watch.until(lambda: watch.state(0).sample)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("card-"))


class Broken:
    """A driver with a bug of ours."""

    def sample(self, _uuid):
        raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_a_worker_is_seen_and_not_taken_for_a_well_card():
    cards = Cards(Broken(), ["GPU-a"])
    cards.start()
    end = time.monotonic() + 40
    while "died" not in (cards.state("GPU-a").problem or "") and time.monotonic() < end:
        time.sleep(0.002)
    assert cards.state("GPU-a").problem == "card GPU-a: its worker has died of a bug: see the log"


def test_a_card_that_is_not_sampled_here_is_a_mistake_of_the_caller(watch):
    with pytest.raises(KeyError):
        watch.cards.state("GPU-none")
