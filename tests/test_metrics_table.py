"""The table of metrics against what the programs really tell, both ways; and what keeps the number of series small."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cardwise.metrics_table import PROGRAMS, page
from cardwise.series import LABELS, Kind, Series, counter, gauge
from tests.dashboards.programs import POD, SERVICE, programs
from tests.gateway.world import gateway, service, upstream

TABLE = [series for table in PROGRAMS.values() for series in table]
CREATED = "_created"
ENGINES = ("vllm:",)
"""What the emulated engine tells as another engine would."""


def families(text):
    """Name as queries write it, type and labels of every series that a page tells; without the library's own."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if family.name.endswith(CREATED) or family.name.startswith(ENGINES):
            continue
        labels = [set(sample.labels) - {"le"} for sample in family.samples if not sample.name.endswith(CREATED)]
        found[name] = (family.type, labels)
    return found


@pytest.fixture
async def told(tmp_path):
    async with programs(tmp_path) as running:
        return {program: families(await running.text(program)) for program in PROGRAMS}


async def test_each_program_tells_exactly_the_series_of_the_table(told):
    assert {program: sorted(found) for program, found in told.items()} == {
        program: sorted(series.name for series in table) for program, table in PROGRAMS.items()
    }


async def test_type_and_labels_are_those_of_the_table(told):
    for program, table in PROGRAMS.items():
        for series in table:
            kind, labels = told[program][series.name]
            assert kind == series.kind.value, series.name
            assert all(each == set(series.labels) for each in labels), series.name


async def test_a_slice_joins_its_card_its_node_its_pod_and_its_service(tmp_path):
    async with programs(tmp_path) as running:
        agent = {family.name: family.samples for family in text_string_to_metric_families(await running.text("agent"))}
        told = await running.text("gateway")
    (granted,) = agent["cardwise_slice_memory_granted_mib"]
    cards = [sample.labels for sample in agent["cardwise_card_info"]]
    (card,) = [each for each in cards if each["uuid"] == granted.labels["uuid"]]
    assert card["node"]
    (pod,) = re.findall(r"cardwise_gateway_replica_info\{(.*)\} 1\.0", told)
    assert (granted.labels["namespace"], granted.labels["pod"]) == ("default", POD)
    assert f'namespace="default",pod="{POD}"' in pod
    assert f'service="{SERVICE}"' in pod


def test_names_are_told_once():
    names = [series.name for series in TABLE]
    assert sorted(names) == sorted(set(names))


def test_every_label_of_the_vocabulary_is_used():
    assert {label for series in TABLE for label in series.labels} == set(LABELS)


def test_a_label_that_is_in_no_vocabulary_is_refused():
    with pytest.raises(ValueError, match="client: not in LABELS"):
        gauge("cardwise_x", "Text.", "client")


@pytest.mark.parametrize(("name", "kind"), [("cardwise_x", Kind.COUNTER), ("cardwise_x_total", Kind.GAUGE)])
def test_a_counter_alone_ends_in_total(name, kind):
    with pytest.raises(ValueError, match="_total"):
        Series(name, kind, "Text.")


def test_a_series_makes_only_what_it_is():
    with pytest.raises(ValueError, match="cardwise_x_total is a counter, not a gauge"):
        counter("cardwise_x", "Text.").values()


@pytest.mark.parametrize(
    ("name", "unit"),
    [("cardwise_card_power_watts", "W"), ("cardwise_slice_memory_used_mib", "MiB"), ("cardwise_card_health", "")],
)
def test_the_unit_is_in_the_name(name, unit):
    (series,) = [each for each in TABLE if each.name == name]
    assert series.unit == unit


def test_the_page_has_every_series_and_every_label():
    text = page()
    assert all(f"`{series.name}`" in text for series in TABLE)
    assert all(f"| `{label}` |" in text for label in LABELS)


# ---------------------------------------------------------------- how many there are


def count(text):
    return sum(not line.startswith("#") for line in text.splitlines())


async def test_whatever_clients_send_makes_no_series():
    """SPEC H1: what an outsider writes is no label's value."""

    async def answer(asked):
        asked.answer(200, b"ok")

    async with upstream(answer) as replica, gateway(service(replica.url, path="/s")) as world, world.client() as client:
        await client.get("/s")
        await client.get("/elsewhere")
        before = count((await world.admin("/metrics")).text)
        for i in range(50):
            told = {"x-cardwise-tenant": f"t{i}", "x-cardwise-priority": f"{i}", "user-agent": f"u{i}"}
            await asyncio.gather(client.get(f"/s/{i}?m={i}", headers=told), client.get(f"/e{i}", headers=told))
        after = count((await world.admin("/metrics")).text)
    assert after == before


async def test_series_of_slices_go_with_their_pods(tmp_path):
    async with programs(tmp_path) as running:
        node = running.node
        before = count(await running.text("agent"))
        for i in range(20):
            body = node.pod(f"short-{i}", 1024, 5, card=1)
            await node.run(body)
            await node.delete(body)
        await node.until(lambda: len(node.agent.journal.rows) == 1, "rows are left")
        assert count(await running.text("agent")) == before
