"""Manifests: what is read, and what each mistake is told with."""

from __future__ import annotations

import pytest

from cardwise.adapters.manifests import read_manifests
from cardwise.errors import InputError

HEAD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n"
POD = HEAD + "spec:\n  containers:\n    - name: main\n"
TEMPLATE = "template: {spec: {containers: [{name: main}]}}"


def read(text, **more):
    return read_manifests({"f.yaml": text, **more})


def object_of(kind, version="apps/v1", spec="", name="x"):
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n  {TEMPLATE}\n  {spec}\n"


@pytest.mark.parametrize(
    ("text", "pods"),
    [
        (POD, 1),
        (object_of("Deployment"), 1),
        (object_of("Deployment", spec="replicas: 3"), 3),
        (object_of("Deployment", spec="replicas: 0"), 0),
        (object_of("ReplicaSet", spec="replicas: 2"), 2),
        (object_of("StatefulSet", spec="replicas: 2"), 2),
        (object_of("DaemonSet"), None),
        (object_of("Job", "batch/v1"), 1),
        (object_of("Job", "batch/v1", "parallelism: 4"), 4),
        (object_of("Job", "batch/v1", "parallelism: 4\n  completions: 2"), 2),
        (object_of("Job", "batch/v1", "suspend: true"), 0),
    ],
)
def test_each_kind_wants_its_number_of_pods(text, pods):
    assert [each.pods for each in read(text).workloads] == [pods]


def test_documents_lists_and_files_are_read_in_order():
    listed = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Pod\n  metadata: {name: c, namespace: x}\n"
    listed += "  spec: {containers: [{name: main}]}\n"
    found = read(POD + "---\n---\n" + POD.replace("name: a", "name: b"), **{"g.yaml": listed}).workloads
    assert [each.full_name for each in found] == ["default/a", "default/b", "x/c"]
    assert [each.where for each in found] == ["f.yaml:1", "f.yaml:10", "g.yaml:4"]


def test_other_kinds_are_passed_over_with_a_note():
    found = read("apiVersion: v1\nkind: Service\nmetadata: {name: s}\n---\n" + object_of("Deployment", "extensions/v1"))
    assert found.workloads == ()
    assert found.notes == (
        "Makes no pods here and was passed over, Service (v1): s.",
        "Makes no pods here and was passed over, Deployment (extensions/v1); it is read as apps/v1: x.",
    )


def test_a_priority_class_counts_wherever_it_stands():
    classes = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 7\n"
    found = read(POD + "  priorityClassName: high\n---\n" + classes)
    assert found.workloads[0].template["spec"]["priority"] == 7
    unknown = read(POD + "  priorityClassName: other\n")
    assert unknown.notes == ("Priority class other is in none of the files and counts as 0: default/a.",)


def test_numbers_nulls_and_dates_are_what_kubernetes_makes_of_them():
    text = (
        HEAD + "  annotations: {day: 2026-01-02}\nspec:\n  nodeSelector:\n  containers:\n    - name: main\n"
        "      resources: {requests: {cpu: 0.5, memory: 1073741824}, limits: }\n"
    )
    template = read(text).workloads[0].template
    assert template["metadata"]["annotations"] == {"day": "2026-01-02"}
    assert template["spec"] == {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "0.5", "memory": 1073741824}}}]
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "f.yaml: has no document with content; give Kubernetes manifests"),
        ("# nothing\n---\n", "f.yaml: has no document with content"),
        ("a: [", "f.yaml:1: column 5: expected the node content"),
        ("a: b: c", "f.yaml:1: column 5: mapping values are not allowed here"),
        ("a: 1\n\ta: 2", "f.yaml:2: column 1: found character '\\t'"),
        ("\x07", "f.yaml: is not YAML: unacceptable character"),
        ("- a", "f.yaml:1: is ['a'], no Kubernetes object"),
        ("a: 1\nb: 2\na: 3", "f.yaml:3: column 1: the key 'a' stands twice; keep one of them"),
        ("&a [*a]", "f.yaml: holds what JSON cannot say"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("kind: Deployment\nname: {{ .Values.name }}", "f.yaml:2: column 8: is a template, not YAML yet; run `helm"),
        ("kind: Pod", "f.yaml:1: apiVersion: is missing; write it"),
        ("apiVersion: v1\nkind: [Pod]", "f.yaml:2: kind: is ['Pod']; write a text"),
        (POD.replace("  name: a\n", "  namespace: x\n"), "f.yaml:3: metadata.name: is missing"),
        (POD.replace("name: a", "name: Big"), "f.yaml:4: metadata.name: 'Big' is no name; write lower-case letters"),
        (POD.replace("name: a", "name: a\n  namespace: A/b"), "f.yaml:5: metadata.namespace: 'A/b' is no name"),
        (POD.replace("name: a", "name: 7"), "f.yaml:4: metadata.name: is 7; write a text"),
        (HEAD + "  annotations: {m: true}\nspec: {containers: [{name: c}]}", "f.yaml:5: metadata.annotations.m: is of"),
        (HEAD, "f.yaml:1: spec.containers: is missing or empty; write at least one container"),
        (POD.replace("- name", "- image"), "f.yaml:7: spec.containers[0].name: is missing; write it"),
        (POD + "    - name: main\n", "f.yaml:6: spec.containers: two containers are named 'main'; rename one"),
        (POD + "      resources: {limits: {nvidia.com/gpu: true}}\n", "limits.nvidia.com/gpu: expected `int | str`"),
        (object_of("Deployment", spec="replicas: two"), "f.yaml:6: spec.replicas: is 'two'; write a whole number of 0"),
        (object_of("Deployment", spec="replicas: -1"), "f.yaml:6: spec.replicas: is -1; write a whole number of 0"),
        (object_of("Deployment", spec="replicas: 10001"), "f.yaml:6: spec.replicas: is 10001; write 10000 or less"),
        ("apiVersion: v1\nkind: List\nitems: {a: 1}", "f.yaml:3: items: is {'a': 1}; write a list of objects"),
        ("apiVersion: v1\nkind: List\nitems: [a]", "f.yaml:3: items[0]: is 'a', no Kubernetes object"),
        (POD + "  priorityClassName: [a]\n", "f.yaml:8: spec.priorityClassName: is ['a']; write a text"),
        (POD + "  priorityClassName: {a: b}\n", "f.yaml:8: spec.priorityClassName: is {'a': 'b'}; write a text"),
        (POD + "---\n" + POD, "f.yaml:12: metadata.name: Pod default/a is already at f.yaml:1; give each a name"),
    ],
)
def test_a_mistake_is_told_with_file_line_field_and_remedy(text, told):
    with pytest.raises(InputError) as error:
        read(text)
    assert told in str(error.value)


def bomb(levels, first="&a0 [x, x, x, x, x, x, x, x, x, x]", way="[{}]", each=10):
    """Each line says the one before several times."""
    lines = [f"a{i}: &a{i} {way.format(', '.join([f'*a{i - 1}'] * each))}" for i in range(1, levels)]
    return "\n".join([f"a0: {first}", *lines]) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        bomb(9),
        bomb(30, each=2),
        bomb(9, first="&a0 {x: 1}", way="{{<<: [{}]}}"),
        bomb(4, first=f"&a0 {'x' * 100_000}", each=12),
        POD + bomb(9),
    ],
    ids=["lists", "deep", "merges", "a long text", "beside a pod"],
)
def test_a_document_that_its_aliases_blow_up_is_refused_before_it_is_made(text):
    with pytest.raises(InputError, match=r"holds more than 1,000,000 values once its aliases"):
        read(text)


def test_aliases_that_stay_small_are_read():
    labels = "x: &web {app: web}\n" + HEAD + "  labels: {<<: *web, tier: front}\n  annotations: *web\n"
    (found,) = read(labels + "spec: {containers: [{name: c}]}\n").workloads
    assert found.template["metadata"] == {"labels": {"app": "web", "tier": "front"}, "annotations": {"app": "web"}}


def test_an_empty_priority_class_is_none():
    assert "priority" not in read(POD + '  priorityClassName: ""\n').workloads[0].template["spec"]
