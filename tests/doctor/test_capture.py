"""The file of a capture: read back as it was, read by ``explain`` too, and without what could be a secret."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from cardwise.adapters.capture import encode_capture, read_capture
from cardwise.adapters.kubectl_list import read_listing
from cardwise.doctor.facts import facts_of
from cardwise.doctor.ranking import diagnose
from cardwise.errors import InputError
from tests.doctor.faults import FAULTS
from tests.doctor.world import TAKEN, small


def again(world, folder):
    """The world's capture, written by us and read again."""
    path = folder / "again.json"
    path.write_text(encode_capture(read_capture(world.write(folder))))
    return path


@pytest.mark.parametrize(("code", "name"), list(FAULTS), ids=[f"{code} {name}" for code, name in FAULTS])
def test_a_saved_capture_leads_to_the_same_diagnosis(tmp_path, code, name):
    world = small()
    FAULTS[code, name](world)
    assert diagnose(facts_of(read_capture(again(world, tmp_path)))) == world.diagnose(tmp_path)


def test_a_saved_capture_is_a_dump_for_other_commands(tmp_path):
    world = small()
    listing = read_listing(again(world, tmp_path))
    assert {found.object.metadata.name for found in listing.nodes} == set(world.nodes)
    assert {found.object.metadata.name for found in listing.pods} == set(world.pods)


def test_a_saved_capture_has_no_variables_arguments_annotations_or_keys_that_no_check_reads(tmp_path):
    world = small()
    pod = world.pods["llm-a"]
    pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = '{"env":"s3cret"}'
    container = pod["spec"]["containers"][0]
    container["env"] = [{"name": "HF_TOKEN", "value": "s3cret"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]
    container["command"] = ["vllm", "serve"]
    container["args"] = ["s3cret", "--api-key", "s3cret", "--ssl=s3cret", "--gpu-memory-utilization", "0.7"]
    FAULTS["CW102", "the secret's certificate, beside its key"](world)
    text = again(world, tmp_path).read_text()
    assert "s3cret" not in text
    assert "bm90IGZvciB5b3U=" not in text
    assert '"CUDA_VISIBLE_DEVICES","value":"0"' in text
    assert '"--gpu-memory-utilization","0.7"' in text


def test_what_is_no_capture_is_refused_with_what_to_give(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"kind":"List","items":[]}')
    with pytest.raises(InputError, match="has no item of kind Node"):
        read_capture(path)


def test_series_of_different_lengths_are_refused(tmp_path):
    world = small()
    world.tell("qps", [1.0, 2.0], service="serving/resnet")
    with pytest.raises(InputError, match="series of different lengths"):
        read_capture(world.write(tmp_path))


@pytest.mark.parametrize("broken", [[None] * 61, [1e308] * 61, [-1.0] * 61, []], ids=["null", "1e308", "-1", "none"])
def test_numbers_that_say_nothing_lead_to_no_finding_and_no_fault(tmp_path, broken):
    world = small()
    world.metrics = {query: [(labels, broken) for labels, _ in found] for query, found in world.metrics.items()}
    assert world.diagnose(tmp_path) == ()


def test_one_clock_that_is_far_ahead_does_not_date_a_list_by_kubectl(tmp_path):
    world = small()
    world.leases["kube-node-lease", "g1"] = -10 * 365 * 86400
    told = {key: value for key, value in world.as_json().items() if key != "cardwise"}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(told))
    taken = read_capture(path).taken
    assert TAKEN - timedelta(minutes=5) < taken <= TAKEN


def test_a_capture_is_shown_by_its_size_and_never_written_out(tmp_path):
    assert len(repr(read_capture(small().write(tmp_path)))) < 50


def test_an_object_of_another_shape_is_refused_by_its_kind(tmp_path):
    world = small()
    world.others.append({"kind": "Lease", "metadata": {"name": "x"}, "spec": {"renewTime": "yesterday"}})
    with pytest.raises(InputError, match="a Lease: "):
        read_capture(world.write(tmp_path))
