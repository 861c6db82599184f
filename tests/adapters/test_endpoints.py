"""EndpointSlices as places, in whatever order and how often they are told."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters.endpoints import Place, State, places_of
from cardwise.adapters.kube_objects import EndpointSlice

HTTP = ({"name": "http", "port": 8000, "protocol": "TCP"},)
READY, NOT_READY = {"ready": True, "serving": True, "terminating": False}, {"ready": False, "serving": False}
ENDING = {"ready": False, "serving": True, "terminating": True}


def endpoint(address="10.0.0.1", conditions=READY, uid=None):
    ref = {} if uid is None else {"targetRef": {"kind": "Pod", "name": uid, "uid": uid}}
    return {"addresses": [address], "conditions": conditions, **ref}


def slice_of(*endpoints, ports=HTTP, family="IPv4"):
    told = {"metadata": {"name": "s"}, "addressType": family, "endpoints": list(endpoints), "ports": list(ports)}
    return msgspec.convert(told, EndpointSlice)


def states(*slices, port=""):
    return {place.url: state for place, state in places_of(slices, port).items()}


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        pytest.param({}, State.READY, id="nothing told"),
        pytest.param(READY, State.READY, id="ready"),
        pytest.param(NOT_READY, State.WAITING, id="not ready"),
        pytest.param({"ready": True, "serving": False}, State.WAITING, id="published though not ready"),
        pytest.param(ENDING, State.ENDING, id="terminating and serving"),
        pytest.param({"ready": True, "serving": True, "terminating": True}, State.ENDING, id="terminating, published"),
        pytest.param({"ready": False, "terminating": True}, State.ENDING, id="terminating, not serving"),
    ],
)
def test_what_an_endpoint_may_get_follows_from_its_conditions(conditions, state):
    assert states(slice_of(endpoint(conditions=conditions))) == {"http://10.0.0.1:8000": state}


def test_a_pod_with_addresses_of_both_families_is_one_replica():
    four, six = slice_of(endpoint(uid="a")), slice_of(endpoint("fd00::1", uid="a"), family="IPv6")
    assert states(four, six) == states(six, four) == {"http://10.0.0.1:8000": State.READY}
    assert states(six) == {"http://[fd00::1]:8000": State.READY}


def test_a_name_is_no_single_replica():
    assert states(slice_of(endpoint("models.example"), family="FQDN")) == {}


@pytest.mark.parametrize("conditions", [READY, NOT_READY])
def test_an_endpoint_that_two_slices_tell_is_one_and_terminating_if_any_says_so(conditions):
    slices = slice_of(endpoint(conditions=conditions)), slice_of(endpoint(conditions=ENDING))
    assert states(*slices) == states(*reversed(slices)) == {"http://10.0.0.1:8000": State.ENDING}


def test_an_address_that_another_pod_has_taken_over_is_another_replica():
    found = places_of([slice_of(endpoint(conditions=ENDING, uid="old"), endpoint(uid="new"))], "")
    assert found == {Place("10.0.0.1", 8000, "old"): State.ENDING, Place("10.0.0.1", 8000, "new"): State.READY}


TWO = ({"name": "grpc", "port": 9000}, {"name": "http", "port": 8000})


@pytest.mark.parametrize(
    ("ports", "wanted", "found"),
    [
        pytest.param(({"name": None, "port": 80},), "", 80, id="the only one"),
        pytest.param(({"name": "odd", "port": 80},), "", 80, id="the only one, whatever its name"),
        pytest.param(TWO, "", 8000, id="of several the one called http"),
        pytest.param(TWO, "grpc", 9000, id="by name"),
        pytest.param(TWO, "9000", 9000, id="by number"),
        pytest.param(TWO, "web", None, id="no such name"),
        pytest.param(TWO, "80", None, id="no such number"),
        pytest.param(({"name": "http", "port": 80, "protocol": "UDP"},), "", None, id="not TCP"),
        pytest.param((), "8000", 8000, id="all ports"),
        pytest.param((), "", None, id="all ports, and none told"),
    ],
)
def test_the_port_is_found_by_name_or_number(ports, wanted, found):
    urls = {} if found is None else {f"http://10.0.0.1:{found}": State.READY}
    assert states(slice_of(endpoint(), ports=ports), port=wanted) == urls


def test_lists_that_are_null_are_empty():
    told = b'{"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": null, "ports": null}'
    assert places_of([msgspec.json.decode(told, type=EndpointSlice)], "") == {}


CONDITION = st.none() | st.booleans()
ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
    st.fixed_dictionaries({"ready": CONDITION, "serving": CONDITION, "terminating": CONDITION}),
    st.sampled_from([None, "a", "b"]),
)
SLICES = st.lists(
    st.builds(
        lambda endpoints, port, family: slice_of(*endpoints, ports=[{"name": "http", "port": port}], family=family),
        st.lists(ENDPOINTS, max_size=4),
        st.sampled_from([8000, 8001]),
        st.sampled_from(["IPv4", "IPv6"]),
    ),
    max_size=5,
)


@given(SLICES, st.randoms())
def test_the_order_of_slices_and_of_their_endpoints_does_not_matter(slices, rng):
    shuffled = [
        msgspec.structs.replace(each, endpoints=rng.sample(each.endpoints, len(each.endpoints))) for each in slices
    ]
    rng.shuffle(shuffled)
    assert places_of(shuffled, "") == places_of(slices, "")
    assert places_of([*slices, *shuffled], "") == places_of(slices, "")


@given(SLICES)
def test_who_is_terminating_anywhere_is_never_ready_and_each_pod_is_there_once(slices):
    found = places_of(slices, "")
    ending = {
        (each.target_ref.uid if each.target_ref else "", each.addresses[0] if each.target_ref is None else "")
        for one in slices
        for each in one.endpoints
        if each.conditions.terminating
    }
    for place, state in found.items():
        if state is State.READY and place.uid:
            assert (place.uid, "") not in ending
    pods = [place.uid for place in found if place.uid]
    assert len(pods) == len(set(pods))
