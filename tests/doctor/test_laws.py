"""What holds whatever is wrong: order does not matter, a steady service is never slow, dates are read as they are."""

from __future__ import annotations

import base64
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardwise.doctor.checks.cw102_certificates import not_after, pem_certificates
from cardwise.doctor.findings import Finding
from cardwise.doctor.measures import spikes
from tests.doctor.faults import FAULTS
from tests.doctor.world import TAKEN, certificate, small


@pytest.mark.parametrize("fault", [("CW203", "8 GiB are free on each of four cards, 12 are asked for")])
def test_the_order_of_objects_does_not_change_the_diagnosis(tmp_path, fault):
    world, turned = small(), small()
    for each in (world, turned):
        FAULTS[fault](each)
    turned.nodes = dict(reversed(turned.nodes.items()))
    turned.pods = dict(reversed(turned.pods.items()))
    turned.metrics = {query: found[::-1] for query, found in reversed(turned.metrics.items())}
    assert [each.finding.code for each in world.diagnose(tmp_path)] == [
        each.finding.code for each in turned.diagnose(tmp_path)
    ]


@given(st.floats(0.001, 60), st.lists(st.floats(0.6, 1.15), min_size=10, max_size=80))
def test_a_service_whose_p99_stays_near_its_usual_value_is_not_slow(usual, shape):
    assert spikes(usual * np.array(shape), None) is None


@given(st.floats(0.05, 5), st.integers(2, 20), st.integers(30, 60))
def test_a_service_beyond_its_target_is_slow_exactly_then(target, slow, calm):
    values = np.array([0.5 * target] * calm + [1.5 * target] * slow + [np.nan] * 3)
    found = spikes(values, target)
    assert found is not None
    assert found.slow.tolist() == [False] * calm + [True] * slow + [False] * 3
    assert not (found.slow & found.calm).any()


def test_one_late_scrape_is_no_spike():
    assert spikes(np.array([0.1] * 30 + [5.0] + [0.1] * 30), 0.2) is None


@settings(max_examples=30)
@given(st.integers(-300, 20_000))
def test_the_end_of_a_certificate_is_read_as_it_was_written(days):
    (der,) = pem_certificates(certificate(days))
    assert not_after(der) == TAKEN + timedelta(days=days)


@given(st.binary(max_size=80))
def test_what_is_no_certificate_is_a_value_error_and_nothing_else(data):
    with pytest.raises(ValueError, match=r"certificate|cut off|validity|base64"):
        not_after(data)


def test_a_secret_without_a_certificate_is_told_as_unreadable():
    with pytest.raises(ValueError, match="no PEM certificate"):
        pem_certificates(base64.b64encode(b"hello").decode())


def test_a_finding_without_evidence_or_action_cannot_be_made():
    with pytest.raises(ValueError, match="needs places, evidence, something to do"):
        Finding("CW999", "x", frozenset({"cluster"}), "why", (), "do")
