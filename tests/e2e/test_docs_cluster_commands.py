"""The commands that docs and README show for a cluster, run as a user types them, page after page, on one cluster.

Only what no test can run is passed over, and then the page's source says why (``docs_blocks.py`` has the marks): a
block of commands that is neither run nor marked fails here. Manifests are applied, Helm's values rendered, settings
read. What pages take for granted is in ``docs_world.py``.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import operator
import re
import shlex
import shutil
import time
import tomllib
from datetime import UTC, datetime, timedelta

import click
import pytest
import yaml

from cardwise.adapters.quota_file import read_quota_file
from cardwise.agent.settings import read_settings as read_agent
from cardwise.cli.main import cli
from cardwise.config import read_policy_file
from cardwise.controller.settings import read_settings as read_controller
from cardwise.gateway.cluster_settings import OWN_KEYS, PORT_KEY
from cardwise.gateway.settings import read_settings as read_gateway
from cardwise.metrics_table import PROGRAMS
from cardwise.plan.tables import tables
from cardwise.scheduler.settings import read_settings as read_scheduler
from tests.charts.conftest import IMAGE, NAMESPACE
from tests.charts.helm import CHART, helm, set_flags
from tests.controlplane.given import given
from tests.e2e.docs_blocks import COMMAND, ROOT, blocks, named_in_sentences, pages
from tests.e2e.docs_cluster import DocsCluster, until
from tests.e2e.docs_world import AFTER, ASKS, BEFORE, NODE, past
from tests.prometheus import MISSING, prometheus_in, store_history

BLOCKS, PAGES = blocks(), [str(each.relative_to(ROOT)) for each in pages()]
INSTALL = "docs/howto/install.md"
LAST = ("Give a node back", "Remove")
"""Sections of the install page that undo what all other pages stand on."""
FIRST = ["README.md", *(f"docs/howto/{name}.md" for name in ("your-own-cluster", "doctor", "page", "gateway"))]
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SERVICE_POLICY = {"targetP99Ms", "load", "gateway", "windows"}

PLAIN = {"text", "bash", "sh", "shell", ""}
STAYS = ("cardwise page",)
CODES = {"kubectl run forged": {1}, "cardwise doctor": {0, 1}}
"""Of commands that may or must end with another exit code than 0, as their pages say."""
SAYS = {
    "kubectl run try": r"\Acardwise\Z",
    "kubectl run forged": "ValidatingAdmissionPolicy 'cardwise-allocation'",
    "kubectl -n cardwise-system get endpointslices": r"10\.9\.\d+\.\d+ ",
    "kubectl get nodes -o custom-columns='NODE:.metadata.name,AGENT": rf"(?m)^{NODE} +true +32$",
    "cardwise explain": "gpu-",
    "cardwise quota why": "waits for quota",
}
"""What pages promise of a command's output."""
MAY_SAY_NOTHING = ("reason=CardwiseRival", "type=Warning")
PROMETHEUS = r"http://(prometheus|localhost|127\.0\.0\.1):9090"
LOOKS = re.compile("kubectl .*get pods .*cardwise|helm (get|status) ")


# ---------------------------------------------------------------- what is marked


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_run_or_its_source_says_why_not(page):
    mine = [block for block in BLOCKS if block.page == page]
    typed = [block for block in mine if block.language in PLAIN and COMMAND.search(block.text)]
    assert not typed, f"commands stand in blocks marked console, each after a '$ ': {', '.join(map(str, typed))}"
    for block in mine:
        if block.language == "console":
            assert block.commands, f"{block}: no command; output alone is a block of text"
        marked = block.language in {"console", "yaml", "toml"}
        assert marked or not block.reason, f"{block}: is not run anyway, take the mark away"
        for prefix in block.but:
            assert any(each.startswith(prefix) for each in block.commands), f"{block}: no command begins with {prefix}"


def _unrun():
    for block in BLOCKS:
        for command in block.commands:
            if command not in block.run and "cardwise " in command:
                yield pytest.param(command, id=f"{block.page}: {command}")


@pytest.mark.parametrize("command", list(_unrun()))
def test_what_no_test_runs_has_options_that_are_there(command):
    _, _, ours = command.rpartition("cardwise ") if " -- cardwise " in command else command.partition("cardwise ")
    assert not _unknown(ours.replace("\\\n", " "))


def test_what_sentences_name_is_there():
    ours = [(where, command) for where, command in named_in_sentences() if command.startswith("cardwise ")]
    assert len(ours) > 50
    for where, command in ours:
        assert not _unknown(command.removeprefix("cardwise ")), where


def test_values_that_sentences_name_are_the_charts():
    names = rf"`(?:--set )?((?:{'|'.join(VALUES)})(?:\.(?!yaml)[A-Za-z-]+)+)"
    found = {name for page in pages() for name in re.findall(names, page.read_text())}
    assert len(found) > 10
    for name in found:
        functools.reduce(operator.getitem, name.split("."), VALUES)


OWN = re.compile(r"cardwise\.dev/([a-z0-9-]*[a-z0-9])")
SAID = re.compile(r"\bCardwise[A-Z][A-Za-z]+\b")
METRIC = re.compile(r"(?<![\w:])cardwise_(?!dev_)[a-z0-9_]*[a-z0-9]\b(?![*_])")


@functools.cache
def _known():
    """What the programs, the chart and its rules say: labels and annotations, events and alerts, metrics."""
    files = (*(ROOT / "src" / "cardwise").rglob("*.py"), *(path for path in CHART.rglob("*") if path.is_file()))
    text = "\n".join(path.read_text() for path in files)
    keys = {*OWN.findall(text), *(f"gateway-{key}" for key in (*OWN_KEYS, PORT_KEY)), "v1alpha1"}
    series = {each.name for table in PROGRAMS.values() for each in table}
    return keys, set(SAID.findall(text)), series | set(METRIC.findall(text))


@pytest.mark.parametrize("page", PAGES)
def test_labels_annotations_events_and_metrics_of_ours_are_the_programs(page):
    text = (ROOT / page).read_text().replace("\\.", ".")
    keys, said, series = _known()
    assert set(OWN.findall(text)) <= keys
    assert set(SAID.findall(text)) <= said
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in METRIC.findall(text)} <= series


def _unknown(ours):
    """The words that no command has: of its name, or of its options."""
    words = shlex.split(ours, comments=True)
    found, known = cli, {"--help", "-h", "--version"}
    while isinstance(found, click.Group) and words and words[0].isalpha():
        name = words.pop(0)
        found = found.get_command(click.Context(found), name)
        if found is None:
            return {name}
        known |= {option for each in found.params for option in (*each.opts, *each.secondary_opts)}
    return {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} - known


# ---------------------------------------------------------------- what is read


def _in_words(language):
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language == language and not block.reason]


def _values():
    """Blocks of the chart's values, each text once."""
    shown = [each.values[0] for each in _in_words("yaml")]
    ours = [block for block in shown if set(next(yaml.safe_load_all(block.text))) <= set(VALUES)]
    return list({block.text: block for block in ours}.values())


@pytest.mark.parametrize("block", _values(), ids=str)
def test_shown_values_are_the_charts(block, tmp_path):
    """A part of a page goes on where the parts before it ended."""
    told = ["--kube-version", "1.36.2", "--namespace", NAMESPACE]
    for each in _values():
        if each.page == block.page and each.line <= block.line:
            values = tmp_path / f"{each.line}.yaml"
            values.write_text(each.text)
            told += ["-f", str(values)]
    made = list(yaml.safe_load_all(helm("template", "cardwise", CHART, *told, *set_flags(IMAGE), home=tmp_path)))
    settings = {name: text for each in made if each["kind"] == "ConfigMap" for name, text in each["data"].items()}
    assert "scheduler.toml" in settings
    for name, read in READERS.items():
        if name in settings:
            (tmp_path / name).write_text(settings[name])
            assert read(tmp_path / name)


READERS = {
    "scheduler.toml": read_scheduler,
    "agent.toml": read_agent,
    "controller.toml": read_controller,
    "gateway.toml": read_gateway,
}
SERVICE = '[[services]]\nname = "s"\nkind = "oip"\none-ms = 4\nfull-batch-ms = 15\nreplicas = ["http://a:1"]\n'
BATCH = '\n[[teams]]\nname = "batch"\nnamespaces = ["batch"]\nclass = "best-effort"\n'


@pytest.mark.parametrize("block", _in_words("toml"))
def test_shown_settings_are_read_by_the_program_that_they_are_for(block, tmp_path):
    told = tomllib.loads(block.text)
    file = tmp_path / "shown.toml"
    before, read = _reader(block, told)
    file.write_text(before + block.text)
    assert read(file)


def _reader(block, told):
    """What the page has said before, and who reads it; by its first key."""
    if set(told) == {"windows"}:
        quota = next(each for each in BLOCKS if each.page == block.page and "[[teams]]" in each.text)
        return quota.text + BATCH, read_quota_file
    if "teams" in told:
        return "", read_quota_file
    if "profiles" in told.get("services", ()):
        return SERVICE, read_gateway
    if "context_mib" in told:
        return "", tables
    if isinstance(told.get("policy"), str):
        return "", read_policy_file
    return "", read_scheduler if "policy" in told else read_controller


# ---------------------------------------------------------------- what is run


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """The address of one that knows a cluster's past; "" where the program is missing."""
    folder = tmp_path_factory.mktemp("prometheus")
    store = past(int(time.time()))
    try:
        store_history(folder, f"{store}# EOF\n", "--max-block-duration=720h")
    except pytest.skip.Exception:
        yield ""
        return
    with prometheus_in(folder, "{}\n", "--storage.tsdb.retention.time=90d") as url:
        yield url


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, prometheus):
    if given()[0]:
        pytest.skip("starts its own API server, and is its only user: the cluster of KUBECONFIG is given as is")
    with DocsCluster(tmp_path_factory.mktemp("docs"), prometheus) as made:
        yield made


def way():
    """The blocks in the order in which they are gone through: pages that need the chart after its installation."""

    def place(block):
        if block.page == INSTALL:
            return (9, block.page) if block.section in LAST else (0, block.page)
        return (1, f"{FIRST.index(block.page)}") if block.page in FIRST else (2, block.page)

    taken = [each for each in BLOCKS if each.file or each.language == "yaml" or each.cluster]
    return sorted(
        (each for each in taken if not each.reason or each.run), key=lambda block: (*place(block), block.line)
    )


@pytest.mark.controlplane
def test_the_pages_for_a_cluster_do_what_they_say(cluster, subtests):
    typed = set()
    for place, block, commands in _stations():
        with subtests.test(msg=place):
            if block and block.file:
                (cluster.user / block.file).write_text(block.text)
            if block and block.language == "yaml":
                for document in yaml.safe_load_all(block.text):
                    take_in(cluster, block, document)
            for command in commands:
                if command not in typed or not command.startswith("cardwise"):  # which change nothing here
                    do(cluster, command)
                typed.add(command)


def _stations():
    """Where it is, the block, and what is typed there; what sentences say of a release before it is taken away."""
    gone = [(str(block), block, block.run if block.cluster else []) for block in way()]
    assert len(gone) > 60, "where have the blocks gone?"
    looks = [(where, None, [command]) for where, command in named_in_sentences() if LOOKS.match(command)]
    at = next(i for i, (_, block, _) in enumerate(gone) if block.page == INSTALL and block.section in LAST)
    return [*gone[:at], *looks, *gone[at:]]


def take_in(cluster, block, document):
    """Have the API server look at a manifest, or at a part of one."""
    if set(document) <= set(VALUES):
        return
    if "kind" in document:
        space = document["metadata"].get("namespace", "default")
        cluster.namespace(space)
        cluster.apply(yaml.safe_dump(document), space)
    elif set(document) <= {"metadata", "spec"}:
        cluster.plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(_as_pod(document)))
    else:
        assert set(document) <= SERVICE_POLICY, f"what is this part of? {sorted(document)}"
        shown = next(each for each in BLOCKS if each.page == block.page and "kind: ServicePolicy" in each.text)
        policy = yaml.safe_load(shown.text)
        policy["spec"] |= document
        space = policy["metadata"]["namespace"]
        cluster.plane.kubectl("apply", "-n", space, "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(policy))


def _as_pod(part):
    """A pod of which this is a part: of a pod template, what is shown of it."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "shown"}, **copy.deepcopy(part)}
    pod["metadata"]["name"] = "shown"
    containers = pod.setdefault("spec", {}).setdefault("containers", [{}])
    for container in containers:
        container.setdefault("name", "app")
        container.setdefault("image", "none")
    return pod


def do(cluster, command):
    """Type it, and look at what comes of it."""
    if re.search(rf"{PROMETHEUS}|\$PROMETHEUS", command) and not cluster.prometheus:
        pytest.skip(MISSING)
    if command.startswith("curl ") and not shutil.which("curl"):
        pytest.skip("curl is not on PATH")
    for prefix, prepare in BEFORE.items():
        if command.startswith(prefix):
            prepare(cluster)
    for reason in re.findall(r"reason=(\w+)", command):
        if not any(each in command for each in MAY_SAY_NOTHING):
            cluster.event(reason)
    typed = filled_in(cluster, command)
    with _of_helm(cluster, command):
        code, out, err = until(lambda: _typed(cluster, typed))
    said = f"{typed}\nexit code {code}\n{out}{err}"
    assert code in _told(CODES, command, {0}), said
    assert re.search(_told(SAYS, command, ""), f"{out.strip()}\n{err}" if code else out.strip()), said
    if command.startswith("kubectl") and " get " in command and ">" not in command:
        assert out.strip() or any(each in command for each in MAY_SAY_NOTHING), f"says nothing: {typed}"
    for prefix, check in AFTER.items():
        if command.startswith(prefix):
            check(cluster)


def _typed(cluster, command):
    """Exit code, stdout, stderr; nothing where kubectl was asked again sooner than a person can type."""
    done = cluster.run(command, stays=command.startswith(STAYS))
    return None if "within the past second, please wait" in done[2] else done


def _told(table, command, otherwise):
    return next((value for prefix, value in table.items() if command.startswith(prefix)), otherwise)


@contextlib.contextmanager
def _of_helm(cluster, command):
    changes = re.match(r"helm (install|upgrade|uninstall)", command)
    if changes:
        cluster.before_helm()
    yield
    if changes:
        cluster.after_helm()


def filled_in(cluster, command):
    """With what stands here for the words in capitals."""
    if re.search(r"\bPOD\b", command):
        pod = cluster.pod_of("default", ASKS)
        command = re.sub(r"\bPOD\b", pod, command)
    command = re.sub(r"\bNAMESPACE\b", "default", command)
    command = re.sub(r"2026-11-30T1(\d):00Z", lambda hour: _ago(4 - int(hour[1])), command)
    command = re.sub(PROMETHEUS, cluster.prometheus, command)
    return re.sub(r"\bNODE\b(?!:)", NODE, command)


def _ago(hours):
    """As the pages write a time."""
    return f"{datetime.now(UTC) - timedelta(hours=hours):%Y-%m-%dT%H:%MZ}"
