"""The trace's CSVs: what a row means, the round trip, the one sentence for every wrong file, and the real files."""

from __future__ import annotations

import contextlib
import gzip
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cardwise.adapters.openb import CARD_MEMORY_MIB, UNKNOWN_CARD_MEMORY_MIB, read_openb, write_openb
from cardwise.core.cluster import Cluster
from cardwise.core.history import History, PodRecord
from cardwise.core.inventory import CardSpec, NodeSpec
from cardwise.core.request import Isolation, PodRequest, Shape
from cardwise.errors import InputError, UserError

NODE_HEADER = "sn,cpu_milli,memory_mib,gpu,model"
POD_HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli"
FULL_HEADER = f"{POD_HEADER},gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
NODES = f"{NODE_HEADER}\nn0,64000,262144,2,T4\nn1,32000,131072,0,\n"
PODS = f"{FULL_HEADER}\np0,12000,16384,1,460,,LS,Running,10,30,11\n"
WANT_NODES = f"the trace's node file as CSV with the columns {NODE_HEADER}"
WANT_PODS = f"the trace's pod file as CSV with the columns {POD_HEADER}"


def whole(cards: int = 1, models: frozenset[str] = frozenset()) -> Shape:
    return Shape(cards, whole=True, models=models)


def share_of(milli: int, cards: int = 1, **more: Any) -> Shape:
    """A slice as the trace knows it: the same share of memory and compute."""
    return Shape(cards, memory_milli=milli, compute_milli=milli, **more)


IN_MIB = Shape(1, memory_mib=4096, compute_milli=200)


@pytest.fixture
def read(tmp_path):
    """Reads these texts as nodes.csv and pods.csv."""

    def _read(pods=PODS, nodes=NODES):
        for name, text in (("nodes.csv", nodes), ("pods.csv", pods)):
            if text is not None:
                (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_openb(tmp_path / "nodes.csv", tmp_path / "pods.csv")

    return _read


@pytest.fixture
def refused(read, tmp_path):
    """The message about these texts, without the folder."""

    def _refused(**texts):
        with pytest.raises(InputError) as caught:
            read(**texts)
        return str(caught.value).replace(f"{tmp_path}/", "")

    return _refused


# ---------------------------------------------------------------- what a row means


def test_a_node_has_cards_of_its_model_with_memory_from_the_table(read):
    assert read().nodes == (
        NodeSpec("n0", 64000, 262144, (CardSpec("n0-0", "T4", 15109), CardSpec("n0-1", "T4", 15109))),
        NodeSpec("n1", 32000, 131072),
    )


@pytest.mark.parametrize(
    ("asked", "shape"),
    [
        pytest.param("0,0,", Shape(0), id="no card"),
        pytest.param("1,1000,", whole(), id="whole"),
        pytest.param("8,1000,", whole(cards=8), id="whole cards"),
        pytest.param("1,460,", share_of(460), id="slice of both memory and compute"),
        pytest.param("2,500,", share_of(500, cards=2), id="slice on two cards"),
        pytest.param("1,1,T4|t4|V100M16", share_of(1, models=frozenset({"T4", "V100M16"})), id="models, told twice"),
    ],
)
def test_a_pods_shape_is_what_its_row_asks_for(read, asked, shape):
    (pod,) = read(f"{POD_HEADER},gpu_spec\np0,4000,0,{asked}\n").pods
    assert pod.request == PodRequest("p0", replace(shape, cpu_milli=4000, host_memory_mib=0))


def test_times_are_the_traces_own_clock(read):
    (pod,) = read().pods
    assert (pod.created_s, pod.deleted_s) == (10.0, 30.0)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param(f"{POD_HEADER}\np0,1,1,0,0\n", id="no columns"),
        pytest.param(f"{FULL_HEADER}\np0,1,1,0,0,,LS,Pending,,,\n", id="empty"),
    ],
)
def test_times_that_are_not_told_are_unknown(read, pods):
    history = read(pods)
    assert [(pod.created_s, pod.deleted_s) for pod in history.pods] == [(None, None)]
    assert "Pods without a creation time: 1 of 1." in history.notes


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(PODS.replace("\n", "\r\n"), id="windows line ends"),
        pytest.param(PODS.replace("\n", "\n\n"), id="blank lines"),
        pytest.param("\ufeff" + PODS, id="byte order mark"),
        pytest.param(PODS.removesuffix("\n"), id="no last line end"),
        pytest.param(PODS.replace("p0", '"p0"'), id="quotes"),
    ],
)
def test_the_way_a_file_was_saved_does_not_matter(read, text):
    assert read(text).pods == read(PODS).pods


def test_the_sources_are_named(read, tmp_path):
    assert read().source == f"{tmp_path}/pods.csv on {tmp_path}/nodes.csv"


# ---------------------------------------------------------------- notes


def test_what_the_trace_does_not_say_is_noted(read):
    assert read().notes == (
        "The trace tells no card memory; MiB per card from the table of its own simulator: T4 15109.",
        "The trace knows thousandths of a card only: a slice takes the same share of memory and of compute.",
    )


def test_a_card_of_unknown_memory_is_assumed_with_a_note(read):
    history = read(nodes=f"{NODE_HEADER}\nn0,1,1,1,X9\n", pods=f"{POD_HEADER},gpu_spec\np0,1,1,1,1000,x9\n")
    assert history.nodes[0].cards[0].memory_mib == UNKNOWN_CARD_MEMORY_MIB == 16000
    assert "Card memory of X9 is unknown: 16000 MiB per card were assumed." in history.notes


def test_pods_for_a_known_model_that_no_node_has_are_noted(read):
    history = read(f"{POD_HEADER},gpu_spec\np0,1,1,1,500,P100\np1,1,1,1,500,P100|T4\n")
    assert "Pods that name only card models no node has (P100) and never fit: 1 of 2." in history.notes


def test_columns_that_are_not_read_are_noted(read, tmp_path):
    history = read(f"{POD_HEADER},gpu_specs\np0,1,1,0,0,T4\n")
    assert f"{tmp_path}/pods.csv: columns that cardwise does not know were not read: gpu_specs." in history.notes


def test_nodes_without_cards_are_read_with_a_note(read):
    assert "No node has a card." in read(nodes=f"{NODE_HEADER}\nn0,1,1,0,\n").notes


# ---------------------------------------------------------------- wrong files

FILES = [
    pytest.param(None, f": no such file; give {WANT_PODS}", id="missing"),
    pytest.param("", f": is empty; give {WANT_PODS}", id="empty"),
    pytest.param("\n \n", f": is empty; give {WANT_PODS}", id="blank"),
    pytest.param(f"{POD_HEADER}\n", f": has a header and no rows; give {WANT_PODS}", id="header only"),
    pytest.param(
        gzip.compress(PODS.encode()), f": is gzip-compressed; run gunzip first and give {WANT_PODS}", id="gzip"
    ),
    pytest.param(
        f"{POD_HEADER}\np\xe9,1,1,0,0\n".encode("latin-1"),
        f":2: byte 0xe9 is not UTF-8; save the file as UTF-8, give {WANT_PODS}",
        id="latin-1",
    ),
    pytest.param(
        PODS.encode("utf-16"),
        f": is UTF-16 (Windows PowerShell's `>` writes that); save it as UTF-8, give {WANT_PODS}",
        id="UTF-16",
    ),
    pytest.param(
        ' {"kind": "List"}', f": is JSON, not CSV; a cluster's dump goes to --dump, here give {WANT_PODS}", id="JSON"
    ),
    pytest.param(
        "name,cpu_milli,memory_mib,num_gpu\np0,1,1,0\n",
        f":1: gpu_milli: missing in the header 'name,cpu_milli,memory_mib,num_gpu'; give {WANT_PODS}",
        id="missing column",
    ),
    pytest.param(
        POD_HEADER.replace(",", ";") + "\np0;1;1;0;0\n",
        ":1: name, cpu_milli, memory_mib, num_gpu, gpu_milli: missing in the header "
        f"'name;cpu_milli;memory_mib;num_gpu;gpu_milli'; give {WANT_PODS}",
        id="semicolons",
    ),
    pytest.param(
        NODES,
        ":1: name, num_gpu, gpu_milli: missing in the header 'sn,cpu_milli,memory_mib,gpu,model' (this looks like the "
        f"node file); give {WANT_PODS}",
        id="the other file",
    ),
    pytest.param(
        f"{POD_HEADER},name\np0,1,1,0,0,p0\n", ":1: name: the header names this column twice; keep one", id="twice"
    ),
    pytest.param(
        f'{POD_HEADER}\np0,1,1,0,0\n"p1,1,1,0,0\n',
        ":3: is not readable as CSV (unexpected end of data); put a value that holds a comma or a quote in double "
        "quotes",
        id="open quote",
    ),
]


@pytest.mark.parametrize(("pods", "message"), FILES)
def test_a_wrong_file_is_one_clear_sentence(refused, pods, message):
    assert refused(pods=pods) == f"pods.csv{message}"


DAMAGE = st.tuples(
    st.integers(0, len(PODS)), st.integers(0, 6), st.text(max_size=4) | st.sampled_from(list('",|-0\n\r'))
)


@given(DAMAGE, DAMAGE)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file_is_read_or_refused_but_never_a_traceback(read, of_pods, of_nodes):
    (pod_at, pod_length, pod_text), (node_at, node_length, node_text) = of_pods, of_nodes
    with contextlib.suppress(InputError):
        history = read(
            pods=(PODS[:pod_at] + pod_text + PODS[pod_at + pod_length :]).encode("utf-8", "surrogatepass"),
            nodes=(NODES[:node_at] + node_text + NODES[node_at + node_length :]).encode("utf-8", "surrogatepass"),
        )
        Cluster.build(history.nodes)


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InputError, match=re.escape(f"{tmp_path}: is a directory; give {WANT_NODES}")):
        read_openb(tmp_path, tmp_path)


def test_a_pod_file_in_the_place_of_the_node_file_is_recognized(refused):
    assert refused(nodes=PODS).endswith(f"(this looks like the pod file); give {WANT_NODES}")


# ---------------------------------------------------------------- wrong rows

NOT_A_NUMBER = "is not a whole number; write digits only, 0 to"


@pytest.mark.parametrize("value", ["-1", "NaN", "1e3", "4Gi", "4.0", "", " 4", "+4", "0x10", "٤", "inf"])
@pytest.mark.parametrize(("column", "most"), [("cpu_milli", 10**12), ("memory_mib", 10**12), ("num_gpu", 64)])
def test_a_quantity_that_is_not_a_whole_number_is_refused(refused, column, most, value):
    row = {"name": "p0", "cpu_milli": "1", "memory_mib": "1", "num_gpu": "0", "gpu_milli": "0"} | {column: value}
    text = f"{POD_HEADER}\n{','.join(row.values())}\n"
    assert refused(pods=text) == f"pods.csv:2: {column}: {value!r} {NOT_A_NUMBER} {most}"


ROWS = [
    pytest.param(
        "p1,1,1,0",
        f": gpu_milli: 4 values for 5 columns, 'p1,1,1,0'; write one value for each of {POD_HEADER}",
        id="few",
    ),
    pytest.param(
        "p1,1,1,0,0,",
        f": 6 values for 5 columns, 'p1,1,1,0,0,'; write one value for each of {POD_HEADER}",
        id="many",
    ),
    pytest.param("p1,1,1,1,1001", ": gpu_milli: '1001' is too much; write a whole number from 0 to 1000", id="milli"),
    pytest.param("p1,1,1,1,-5", f": gpu_milli: '-5' {NOT_A_NUMBER} 1000", id="negative milli"),
    pytest.param("p1,1,1,2,0", ": gpu_milli: '0' for 2 cards; write 1 to 999, or 1000 for whole cards", id="no milli"),
    pytest.param(
        "p1,1,1,0,500",
        ": gpu_milli: '500' for 0 cards; write 0 here, or the number of cards in num_gpu",
        id="milli of no card",
    ),
    pytest.param("p1,1,1,65,1000", ": num_gpu: '65' is too much; write a whole number from 0 to 64", id="cards"),
    pytest.param(
        f"p1,{10**12 + 1},1,0,0",
        ": cpu_milli: '1000000000001' is too much; write a whole number from 0 to 1000000000000",
        id="overflow",
    ),
    pytest.param(
        f"p1,{'9' * 5000},1,0,0",
        f": cpu_milli: '{'9' * 59}… is too much; write a whole number from 0 to 1000000000000",
        id="a very long number",
    ),
    pytest.param(
        "p0,1,1,0,0",
        ": name: 'p0' is already the name of line 2; give every row a name of its own, without control characters",
        id="duplicate",
    ),
    pytest.param(
        "\x1b[31mp1,1,1,0,0",
        ": name: '\\x1b[31mp1' is no name; give every row a name of its own, without control characters",
        id="terminal escape",
    ),
    pytest.param(
        ",1,1,0,0", ": name: '' is no name; give every row a name of its own, without control characters", id="no name"
    ),
]


@pytest.mark.parametrize(("row", "message"), ROWS)
def test_a_wrong_row_is_named_with_line_field_value_and_remedy(refused, row, message):
    assert refused(pods=f"{POD_HEADER}\np0,1,1,0,0\n{row}\n") == f"pods.csv:3{message}"


FULL_ROWS = [
    pytest.param(
        "p0,1,1,1,500,V100,LS,Running,,,",
        ": gpu_spec: unknown GPU model 'V100' in 'V100'; write models of the node file (T4) or known ones (A10, G1, "
        "G2, G3, P100, T4, V100M16, V100M32), separated by |",
        id="misspelt model",
    ),
    pytest.param(
        "p0,1,1,1,500,T4|,LS,Running,,,",
        ": gpu_spec: unknown GPU model '' in 'T4|'; write models of the node file (T4) or known ones (A10, G1, "
        "G2, G3, P100, T4, V100M16, V100M32), separated by |",
        id="model missing after |",
    ),
    pytest.param(
        "p0,1,1,0,0,T4,LS,Running,,,",
        ": gpu_spec: 'T4' for 0 cards; leave it empty, or write the number of cards",
        id="model of no card",
    ),
    pytest.param(
        "p0,1,1,0,0,,LS,Running,30,10,",
        ": deletion_time: '10' is before creation_time 30; write a later time, or leave it empty if unknown",
        id="deleted before created",
    ),
    pytest.param("p0,1,1,0,0,,LS,Running,1.5,,", f": creation_time: '1.5' {NOT_A_NUMBER} 1000000000000", id="time"),
    pytest.param("p0,1,1,0,0,,LS,Running,,never,", f": deletion_time: 'never' {NOT_A_NUMBER} 1000000000000", id="word"),
]


@pytest.mark.parametrize(("row", "message"), FULL_ROWS)
def test_a_wrong_model_or_time_is_named_with_line_field_value_and_remedy(refused, row, message):
    assert refused(pods=f"{FULL_HEADER}\n{row}\n") == f"pods.csv:2{message}"


NODE_ROWS = [
    pytest.param("n1,1,1,2,", ": model: '' for 2 cards; write the model of its cards", id="no model"),
    pytest.param(
        "n1,1,1,0,T4",
        ": model: 'T4' for 0 cards; leave it empty, or write the number of cards in gpu",
        id="model of no card",
    ),
    pytest.param("n1,1,1,2,T4|P4", ": model: 'T4|P4' is more than one model; write one model per node", id="two"),
    pytest.param("n1,1,1,-2,T4", f": gpu: '-2' {NOT_A_NUMBER} 64", id="negative"),
    pytest.param("n1,1,4Gi,2,T4", f": memory_mib: '4Gi' {NOT_A_NUMBER} 1000000000000", id="unit"),
    pytest.param(
        "n0,1,1,0,",
        ": sn: 'n0' is already the name of line 2; give every row a name of its own, without control characters",
        id="duplicate",
    ),
]


@pytest.mark.parametrize(("row", "message"), NODE_ROWS)
def test_a_wrong_node_is_named_with_line_field_value_and_remedy(refused, row, message):
    assert refused(nodes=f"{NODE_HEADER}\nn0,1,1,1,T4\n{row}\n") == f"nodes.csv:3{message}"


def test_the_line_is_the_one_a_quoted_row_begins_on(refused):
    rows = 'p0,1,1,0,0,"two\nlines"\np1,x,1,0,0,"two\nlines"\n'
    assert refused(pods=f"{POD_HEADER},qos\n{rows}").startswith("pods.csv:4: cpu_milli")


# ---------------------------------------------------------------- writing

names = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=8)
amounts = st.integers(0, 10**12)
models = st.sampled_from([*CARD_MEMORY_MIB, "X9", "FOO-80GB"])
times = st.none() | st.integers(0, 10**9).map(float)


@st.composite
def node_specs(draw):
    name, cards = draw(names), draw(st.integers(0, 8))
    model = draw(models)
    memory_mib = CARD_MEMORY_MIB.get(model, UNKNOWN_CARD_MEMORY_MIB)
    specs = tuple(CardSpec(f"{name}-{i}", model, memory_mib) for i in range(cards))
    return NodeSpec(name, draw(amounts), draw(amounts), specs)


@st.composite
def pod_records(draw):
    wanted = frozenset(draw(st.lists(st.sampled_from(sorted(CARD_MEMORY_MIB)), max_size=3)))
    shapes = st.one_of(
        st.just(Shape(0)),
        st.builds(whole, cards=st.integers(1, 8), models=st.just(wanted)),
        st.builds(share_of, st.integers(1, 999), cards=st.integers(1, 8), models=st.just(wanted)),
    )
    shape = replace(draw(shapes), cpu_milli=draw(amounts), host_memory_mib=draw(amounts))
    created_s, deleted_s = draw(times), draw(times)
    if created_s is not None and deleted_s is not None:
        created_s, deleted_s = sorted((created_s, deleted_s))
    return PodRecord(PodRequest(draw(names), shape), created_s, deleted_s)


histories = st.builds(
    lambda nodes, pods: History("drawn", tuple(nodes), tuple(pods)),
    st.lists(node_specs(), min_size=1, max_size=6, unique_by=lambda node: node.name),
    st.lists(pod_records(), min_size=1, max_size=12, unique_by=lambda pod: pod.request.name),
)


@given(histories)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back_the_same(tmp_path, history):
    paths = tmp_path / "n.csv", tmp_path / "p.csv"
    write_openb(history, *paths)
    back = read_openb(*paths)
    assert (back.nodes, back.pods) == (history.nodes, history.pods)


PLAIN_NODE = NodeSpec("n0", 1, 1, (CardSpec("n0-0", "T4", 15109),))
PLAIN_POD = PodRecord(PodRequest("p0", share_of(500)))
NO_PLACE = "cannot be written: the openb format has no place for its"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        pytest.param(replace(PLAIN_NODE, domain="eu"), f"'n0' {NO_PLACE} domain 'eu'", id="domain"),
        pytest.param(replace(PLAIN_NODE, schedulable=False), f"'n0' {NO_PLACE} schedulable False", id="cordoned"),
        pytest.param(
            replace(PLAIN_NODE, cards=(CardSpec("GPU-1", "T4", 15109),)),
            f"'n0' {NO_PLACE} cards (CardSpec(uuid='GPU-1', model='T4', memory_mib=15109, isolat…",
            id="uuid",
        ),
    ],
)
def test_a_node_that_the_format_cannot_hold_is_refused(tmp_path, node, message):
    with pytest.raises(UserError) as caught:
        write_openb(History("h", (node,), (PLAIN_POD,)), tmp_path / "n.csv", tmp_path / "p.csv")
    assert str(caught.value) == f"{tmp_path}/n.csv: {message}"


def asking(shape: Shape, **more: Any) -> PodRecord:
    return PodRecord(PodRequest("p0", shape, **more))


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        pytest.param(asking(share_of(500), service="s"), f"'p0' {NO_PLACE} request.service 's'", id="service"),
        pytest.param(
            asking(share_of(500, isolation=frozenset({Isolation.MPS}))),
            f"'p0' {NO_PLACE} request.shape.isolation frozenset({{<Isolation.MPS: 3>}})",
            id="isolation",
        ),
        pytest.param(
            asking(Shape(1, memory_milli=500, compute_milli=200)),
            f"'p0' {NO_PLACE} request.shape.compute_milli 200",
            id="compute that is not memory",
        ),
        pytest.param(
            PodRecord(PodRequest("a\rb", share_of(500))),
            "'a\\rb' cannot be written; use names without control characters",
            id="control character",
        ),
        pytest.param(replace(PLAIN_POD, node="n0"), f"'p0' {NO_PLACE} node 'n0'", id="node"),
    ],
)
def test_a_pod_that_the_format_cannot_hold_is_refused(tmp_path, pod, message):
    with pytest.raises(UserError) as caught:
        write_openb(History("h", (PLAIN_NODE,), (pod,)), tmp_path / "n.csv", tmp_path / "p.csv")
    assert str(caught.value) == f"{tmp_path}/p.csv: {message}"


@pytest.mark.parametrize(
    ("pod", "field"),
    [
        pytest.param(asking(IN_MIB), "gpu_milli: '0' for 1 cards", id="memory in MiB"),
        pytest.param(replace(PLAIN_POD, created_s=1.5), "creation_time: '1.5' is not a whole number", id="half second"),
        pytest.param(replace(PLAIN_POD, created_s=float("nan")), "creation_time: 'nan' is not", id="no time"),
    ],
)
def test_a_pod_that_the_reader_would_refuse_is_not_written(tmp_path, pod, field):
    with pytest.raises(UserError, match=re.escape(f"p.csv:2: {field}")):
        write_openb(History("h", (PLAIN_NODE,), (pod,)), tmp_path / "n.csv", tmp_path / "p.csv")


def test_a_refused_history_leaves_the_old_files_alone(tmp_path):
    paths = tmp_path / "n.csv", tmp_path / "p.csv"
    write_openb(History("h", (PLAIN_NODE,), (PLAIN_POD,)), *paths)
    before = [path.read_bytes() for path in paths]
    with pytest.raises(UserError):
        write_openb(History("h", (PLAIN_NODE,), (asking(IN_MIB),)), *paths)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_a_folder_that_is_not_there_is_refused_and_nothing_is_written(tmp_path):
    missing = tmp_path / "no" / "p.csv"
    message = f"{missing}: cannot be written (No such file or directory); give a file in a folder that exists"
    with pytest.raises(UserError, match=re.escape(message)):
        write_openb(History("h", (PLAIN_NODE,), (PLAIN_POD,)), tmp_path / "n.csv", missing)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_the_place_of_a_file_is_refused_and_nothing_is_written(tmp_path):
    (tmp_path / "p.csv").mkdir()
    with pytest.raises(UserError, match=re.escape("p.csv: is a directory; give the name of a file to write")):
        write_openb(History("h", (PLAIN_NODE,), (PLAIN_POD,)), tmp_path / "n.csv", tmp_path / "p.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_nodes_and_pods_are_two_files(tmp_path):
    with pytest.raises(UserError, match=re.escape("n.csv: nodes and pods cannot share one file; give two names")):
        write_openb(History("h", (PLAIN_NODE,), (PLAIN_POD,)), tmp_path / "n.csv", tmp_path / "n.csv")


@pytest.mark.parametrize(("nodes", "pods"), [((), (PLAIN_POD,)), ((PLAIN_NODE,), ())], ids=["no nodes", "no pods"])
def test_an_empty_history_is_not_written(tmp_path, nodes, pods):
    with pytest.raises(UserError, match="has a header and no rows"):
        write_openb(History("h", nodes, pods), tmp_path / "n.csv", tmp_path / "p.csv")


# ---------------------------------------------------------------- the real trace

POD_LISTS = [f"cpu{share}" for share in ("037", "050", "072", "100", "200", "235", "250", "300")]
POD_LISTS += ["default", *(f"gpushare{share}" for share in (20, 40, 60, 80, 100))]
POD_LISTS += [f"gpuspec{share}" for share in ("05", "10", "20", "25", "33")]
POD_LISTS += [f"multigpu{share}" for share in (20, 30, 40, 50)]


def gpu_milli(pod: PodRecord) -> int:
    shape = pod.request.shape
    return shape.cards * (1000 if shape.whole else shape.compute_milli)


@pytest.mark.trace
@pytest.mark.parametrize("name", POD_LISTS)
def test_every_pod_file_of_the_trace_is_read_whole(openb_dir, name):
    path = openb_dir / f"openb_pod_list_{name}.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    history = read_openb(openb_dir / "openb_node_list_gpu_node.csv", path)
    assert len(history.pods) == len(rows)
    assert sum(map(gpu_milli, history.pods)) == sum(int(row[3]) * int(row[4]) for row in rows)


@pytest.mark.trace
@pytest.mark.parametrize(
    ("name", "nodes", "cards"), [("gpu_node", 1213, 6212), ("all_node", 1523, 6212)], ids=["gpu_node", "all_node"]
)
def test_both_node_files_of_the_trace_make_a_cluster(openb_dir, name, nodes, cards):
    """Numbers of the paper: 6,212 GPUs on 1,213 nodes, and 310 nodes without."""
    pods = openb_dir / "openb_pod_list_default.csv"
    cluster = Cluster.build(read_openb(openb_dir / f"openb_node_list_{name}.csv", pods).nodes)
    assert (len(cluster.node_names), cluster.card_exists.sum()) == (nodes, cards)


@pytest.mark.trace
def test_the_trace_survives_the_round_trip(openb_dir, tmp_path):
    nodes, pods = openb_dir / "openb_node_list_all_node.csv", openb_dir / "openb_pod_list_gpuspec33.csv"
    history = read_openb(nodes, pods)
    write_openb(history, tmp_path / "n.csv", tmp_path / "p.csv")
    back = read_openb(tmp_path / "n.csv", tmp_path / "p.csv")
    assert (back.nodes, back.pods) == (history.nodes, history.pods)


def test_ten_thousand_pods_are_read_in_a_moment(read):
    """A third of a second; the bound is loose, for other tests run beside this one."""
    rows = "".join(f"p{i},{1000 * (i % 37)},{i % 11},1,{i % 999 + 1},,LS,Running,{i},{i + 9},\n" for i in range(10_000))
    start = time.process_time()
    read(f"{FULL_HEADER}\n{rows}")
    assert time.process_time() - start < 1.0
