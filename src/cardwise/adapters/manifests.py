"""Manifests as users keep them in files: YAML documents as workloads, or refused with line, field and remedy.

Reads what makes pods; other kinds are passed over with a note. Refuses what no API server takes where that decides
anything here (a boolean as annotation, a name with capitals), but is no validation of manifests: that is
``kubectl apply --dry-run=server``. Making pods of workloads is the controllers' work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.notes import Notes
from cardwise.errors import InputError
from cardwise.files import seen

WANT = "Kubernetes manifests in YAML, such as a Deployment"
GROUPS = {
    "Pod": "v1",
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
}
"""Kinds that make pods here, and the version in which each of them is read."""
MOST_REPLICAS = 10_000
"""More than any file means; one digit too many would fill this machine's memory."""
MOST_PARTS = 1_000_000
"""Values of one document, each alias counted with all that it stands for, and long texts by the hundred characters."""
_TEXT_PART = 100
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PRIORITY_CLASS = ("scheduling.k8s.io/v1", "PriorityClass")
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """Something that makes pods.

    pods: how many; None means one per node (DaemonSet). template: ``metadata`` and ``spec`` of each, as JSON has it.
    where: ``file:line``, for messages.
    """

    kind: str
    namespace: str
    name: str
    pods: int | None
    template: Mapping[str, Any]
    where: str

    @property
    def full_name(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Manifests:
    """What some files hold. notes: what was passed over or assumed."""

    workloads: tuple[Workload, ...]
    notes: tuple[str, ...]


def read_manifests(texts: Mapping[str, str]) -> Manifests:
    """Workloads of all files, in their order. ``texts``: file name to content.

    Raises InputError that names file, line and field.
    """
    notes, priorities = Notes(), dict(_SYSTEM_PRIORITIES)
    documents = [each for file, text in texts.items() for each in _objects(file, text)]
    for document in documents:
        if (document.value.get("apiVersion"), document.value.get("kind")) == _PRIORITY_CLASS:
            priorities[document.name()] = document.whole("value", 0, least=-(2**31))
    workloads: dict[tuple[str, str], Workload] = {}
    for document in documents:
        workload = _workload(document, priorities, notes)
        if workload is None:
            continue
        before = workloads.setdefault((workload.kind, workload.full_name), workload)
        if before is not workload:
            raise document.error(
                f"{workload.kind} {workload.full_name} is already at {before.where}; give each a name of its own",
                "metadata",
                "name",
            )
    return Manifests(tuple(workloads.values()), notes.lines())


# ---------------------------------------------------------------- documents


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: dates stay text, and a key that stands twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As PyYAML does, but no key may hide another."""
        known: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in known:
                    problem = f"the key {seen(key.value)} stands twice; keep one of them"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                known.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class _Object:
    """One Kubernetes object of a file: its value, its YAML node (for lines), and where in the document it stands."""

    file: str
    value: dict[str, Any]
    node: yaml.Node
    base: FieldPath = ()

    def error(self, message: str, *path: str | int) -> InputError:
        """An error at the line of that field, or of the innermost one around it that is there."""
        field = _dotted((*self.base, *path)) or None
        return InputError(self.file, message, line=_line(self.node, path), field=field)

    def part(self, *path: str) -> dict[str, Any]:
        """A mapping below the object; empty if it is absent."""
        value: Any = self.value
        for i, key in enumerate(path):
            value = value.get(key) or {}
            if not isinstance(value, dict):
                raise self.error(f"is {seen(value)}; write a mapping of keys and values", *path[: i + 1])
        return value

    def text(self, *path: str, otherwise: str | None = None) -> str:
        """A text below the object. ``otherwise``: if it is absent; None if it must be there."""
        value = self.part(*path[:-1]).get(path[-1])
        if value is None and otherwise is not None:
            return otherwise
        if not isinstance(value, str) or not value:
            told = "is missing; write it" if value is None else f"is {seen(value)}; write a text"
            raise self.error(told, *path)
        return value

    def name(self, key: str = "name", otherwise: str | None = None) -> str:
        """The object's name, or its namespace. Raises InputError if no API server would take it."""
        name = self.text("metadata", key, otherwise=otherwise)
        if not _NAME.fullmatch(name):
            told = "lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"
            raise self.error(f"{seen(name)} is no name; write {told}", "metadata", key)
        return name

    def whole(self, key: str, otherwise: int, *, within: tuple[str, ...] = (), least: int = 0) -> int:
        """A whole number below the object."""
        value = self.part(*within).get(key)
        if value is None:
            return otherwise
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(f"is {seen(value)}; write a whole number of {least} or more", *within, key)
        return value


def _objects(file: str, text: str) -> Iterator[_Object]:
    """Objects of all documents of a file; those of Lists one by one."""
    found = False
    for node, value in _documents(file, text):
        if value is None:
            continue
        found = True
        if not isinstance(value, dict):
            raise InputError(file, f"is {seen(value)}, no Kubernetes object; give {WANT}", line=_line(node, ()))
        yield from _unlisted(_Object(file, value, node))
    if not found:
        raise InputError(file, f"has no document with content; give {WANT}")


def _documents(file: str, text: str) -> Iterator[tuple[yaml.Node, Any]]:
    loader = None
    try:
        loader = _Loader(text)
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                break
            if _parts(node) > MOST_PARTS:
                told = f"holds more than {MOST_PARTS:,} values once its aliases (*name) are written out; write fewer"
                raise InputError(file, told, line=_line(node, ()))
            value = loader.construct_document(node)
            msgspec.json.encode(value)  # what JSON cannot say, no API server was ever told
            yield node, value
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        message = f"{exc.problem or exc.context}; give {WANT}"
        if "{{" in text:
            message = "is a template, not YAML yet; run `helm template` on the chart and give its output"
        where = f"column {mark.column + 1}: " if mark else ""
        raise InputError(file, f"{where}{message}", line=mark.line + 1 if mark else None) from exc
    except yaml.YAMLError as exc:
        raise InputError(file, f"is not YAML: {' '.join(str(exc).split())}; give {WANT}") from exc
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as exc:
        raise InputError(file, f"holds what JSON cannot say ({exc}); give {WANT}") from exc
    finally:
        if loader is not None:
            loader.dispose()


def _parts(root: yaml.Node) -> int:
    """How large a document is once its aliases are written out: each of ten lines may say the one before ten times."""
    counted: dict[int, int] = {}

    def count(node: yaml.Node) -> int:
        if id(node) not in counted:
            counted[id(node)] = 0  # what holds itself is refused later
            inner = node.value
            if isinstance(node, yaml.ScalarNode):
                counted[id(node)] = 1 + len(inner) // _TEXT_PART
            elif isinstance(node, yaml.MappingNode):
                counted[id(node)] = 1 + sum(count(key) + count(value) for key, value in inner)
            else:
                counted[id(node)] = 1 + sum(map(count, inner))
        return counted[id(node)]

    return count(root)


def _unlisted(listed: _Object) -> Iterator[_Object]:
    if not str(listed.value.get("kind", "")).endswith("List") or "items" not in listed.value:
        yield listed
        return
    items = listed.value["items"]
    if not isinstance(items, list):
        raise listed.error(f"is {seen(items)}; write a list of objects", "items")
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise listed.error(f"is {seen(item)}, no Kubernetes object", "items", i)
        yield from _unlisted(_Object(listed.file, item, _below(listed.node, ("items", i)), (*listed.base, "items", i)))


# ---------------------------------------------------------------- workloads


def _workload(document: _Object, priorities: Mapping[str, int], notes: Notes) -> Workload | None:
    version, kind = document.text("apiVersion"), document.text("kind")
    if (version, kind) == _PRIORITY_CLASS:
        return None
    if GROUPS.get(kind) != version:
        what = f"{kind} ({version})" + (f"; it is read as {GROUPS[kind]}" if kind in GROUPS else "")
        notes.add(f"Makes no pods here and was passed over, {what}", _label(document))
        return None
    namespace, name = document.name("namespace", otherwise="default"), document.name()
    template = _template(document, kind)
    _check_template(document, kind, template)
    _set_priority(document, kind, template, priorities, notes)
    where = f"{document.file}:{_line(document.node, ())}"
    return Workload(kind, namespace, name, _pods(document, kind), template, where)


def _label(document: _Object) -> str:
    metadata = document.value.get("metadata")
    return str(metadata.get("name", "?")) if isinstance(metadata, dict) else "?"


def _pods(document: _Object, kind: str) -> int | None:
    if kind == "DaemonSet":
        return None
    if kind == "Pod":
        return 1
    within = ("spec",)
    if kind == "Job":
        key, count = "parallelism", document.whole("parallelism", 1, within=within)
        completions = document.whole("completions", count, within=within)
        count = 0 if document.part("spec").get("suspend") is True else min(count, completions)
    else:
        key, count = "replicas", document.whole("replicas", 1, within=within)
    if count > MOST_REPLICAS:
        raise document.error(f"is {count}; write {MOST_REPLICAS} or less", *within, key)
    return count


def _base(kind: str) -> tuple[str, ...]:
    return () if kind == "Pod" else ("spec", "template")


def _template(document: _Object, kind: str) -> dict[str, Any]:
    """Metadata that pods take over, and their spec, with numbers as Kubernetes' quantities."""
    base = _base(kind)
    kept = {key: document.part(*base, "metadata", key) for key in ("labels", "annotations")}
    metadata = {key: dict(value) for key, value in kept.items() if value}
    return {"metadata": metadata, "spec": _as_kubernetes(document.part(*base, "spec"), "spec")}


def _as_kubernetes(value: Any, key: str) -> Any:  # noqa: ANN401 - whatever stands in the file
    """What Kubernetes makes of it: null is absent, and ``cpu: 0.5`` is a number in YAML but a quantity there."""
    if isinstance(value, dict):
        inner = {name: _as_kubernetes(each, key if key == "resources" else str(name)) for name, each in value.items()}
        return {name: each for name, each in inner.items() if each is not None}
    if isinstance(value, list):
        return [_as_kubernetes(each, key) for each in value]
    return repr(value) if key == "resources" and isinstance(value, float) else value


def _check_template(document: _Object, kind: str, template: dict[str, Any]) -> None:
    base = _base(kind)
    if not template["spec"].get("containers"):
        raise document.error("is missing or empty; write at least one container", *base, "spec", "containers")
    try:
        pod = msgspec.convert(template, Pod)
    except msgspec.ValidationError as exc:
        told, _, where = str(exc).partition(" - at `$")
        raise document.error(_advised(told), *base, *_path(document.node, base, where.strip("`"), told)) from exc
    for key in ("initContainers", "containers"):
        for i, container in enumerate(template["spec"].get(key) or ()):
            if not container.get("name"):
                raise document.error("is missing; write it", *base, "spec", key, i, "name")
    names = [each.name for each in (*pod.spec.init_containers, *pod.spec.containers)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise document.error(f"two containers are named {seen(name)}; rename one", *base, "spec", "containers")


def _advised(told: str) -> str:
    """The words of msgspec with what to write."""
    wanted, _, got = told.partition(", got ")
    if wanted == "Expected `str`" and got in {"`bool`", "`int`", "`float`"}:
        return f"is of type {got.strip('`')}, Kubernetes takes only text here; put it in quotes"
    return f"{told[:1].lower()}{told[1:]}; write it as Kubernetes' reference has it"


def _set_priority(
    document: _Object, kind: str, template: dict[str, Any], priorities: Mapping[str, int], notes: Notes
) -> None:
    spec = template["spec"]
    if spec.get("priorityClassName") in (None, "") or spec.get("priority") is not None:
        return
    named = document.text(*_base(kind), "spec", "priorityClassName")
    if named not in priorities:
        who = f"{document.name('namespace', otherwise='default')}/{document.name()}"
        notes.add(f"Priority class {named} is in none of the files and counts as 0", who)
    template["spec"] = {**spec, "priority": priorities.get(named, 0)}


# ---------------------------------------------------------------- lines and fields


def _below(node: yaml.Node, path: Iterable[str | int]) -> yaml.Node:
    """The innermost YAML node on the path that is there."""
    for part in path:
        inner = _child(node, part)
        if inner is None:
            break
        node = inner
    return node


def _child(node: yaml.Node, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part]
    return None


def _line(node: yaml.Node, path: Iterable[str | int]) -> int:
    """The line on which that field stands, counted from 1: of its key, for a mapping begins a line later."""
    line = node.start_mark.line
    for part in path:
        keys = node.value if isinstance(node, yaml.MappingNode) else []
        inner = _child(node, part)
        if inner is None:
            break
        line = next((key.start_mark.line for key, value in keys if value is inner), inner.start_mark.line)
        node = inner
    return line + 1


def _path(node: yaml.Node, base: tuple[str, ...], where: str, told: str) -> FieldPath:
    """Keys of a path as msgspec tells it, ``.spec.containers[0].resources.limits[...]``.

    Of ``[...]`` the first key whose value is neither text nor, where numbers may stand, a number.
    """
    right = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float") if kind == "str" or "`int" in told}
    path: list[str | int] = []
    for key, place in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", where):
        if key or place.isdigit():
            path.append(key or int(place))
        else:
            path += _wrong_key(_below(node, (*base, *path)), right)
    return tuple(path)


def _wrong_key(mapping: yaml.Node, right: set[str]) -> list[str]:
    pairs = mapping.value if isinstance(mapping, yaml.MappingNode) else []
    return [str(key.value) for key, value in pairs if value.tag not in right][:1]


def _dotted(path: FieldPath) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
