"""Policy files: a policy's name and weights, as ``cardwise tune`` writes them and replay and the scheduler load them.

One TOML file::

    policy = "dense"

    [weights]
    sliver = 1.5

Refuses unknown policies, keys and weights, and values that are no number from 0 to 1e6: no typo becomes a default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path

from cardwise.core.claim import LatencyClass
from cardwise.core.cluster import Cluster
from cardwise.core.ledger import MakePolicies
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, Balanced, BalancedWeights, Dense, DenseWeights, make_policy
from cardwise.core.placement.policy import Policy
from cardwise.errors import InputError, UserError
from cardwise.files import plain, read_toml, seen

WANT = "a policy file, as `cardwise tune` writes it"
WEIGHED: dict[str, type[DenseWeights | BalancedWeights]] = {
    Dense.name: DenseWeights,
    Balanced.name: BalancedWeights,
}
"""Policies that take weights, and the weights they take."""
WEIGHT_MAX = 1e6
"""Scores lie in [0, 1] or near it: far above, one weight drowns all others, and their sum overflows."""
_KEYS = ("policy", "weights")
DEFAULT_POLICY = {LatencyClass.SENSITIVE.value: "balanced", LatencyClass.BEST_EFFORT.value: "dense"}
"""SPEC B2 for what must answer fast; SPEC B3 for what is there to fill cards."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy to use: by name with its default weights, or with those of a file.

    label: how reports call it: the name, or the file's stem; the file's path if a built-in policy has that name.
    """

    name: str
    label: str
    weights: Mapping[str, float] = field(default_factory=dict)

    def make(self, cluster: Cluster, mix: Mix, seed: int) -> Policy:
        """Bind the policy to a cluster."""
        if self.name == Dense.name:
            return Dense(cluster, mix, DenseWeights(**self.weights))
        if self.name == Balanced.name:
            return Balanced(cluster, BalancedWeights(**self.weights))
        return make_policy(self.name, cluster, mix, seed)


def choose_policies(names_or_paths: Sequence[str]) -> tuple[PolicyChoice, ...]:
    """As :func:`choose_policy`, each under a label of its own: by their paths if two files would be called the same."""
    distinct = tuple(dict.fromkeys(names_or_paths))
    choices = tuple(choose_policy(each) for each in distinct)
    if len({choice.label for choice in choices}) == len(choices):
        return choices
    return tuple(replace(choice, label=plain(each)) for choice, each in zip(choices, distinct, strict=True))


def policies_by_class(told: Mapping[str, str], seed: int) -> MakePolicies:
    """How a ledger makes its policies, by the names or files told per latency class; what is left out is the default.

    Raises UserError if a class or a policy is unknown.
    """
    known = {each.value for each in LatencyClass}
    wrong = sorted(told.keys() - known)
    if wrong:
        raise UserError(f"policy.{wrong[0]}: no such class; write {' or '.join(sorted(known))}")
    names = {**DEFAULT_POLICY, **told}
    chosen = {each: choose_policy(names[each.value]) for each in LatencyClass}
    return lambda cluster, mix: _made(chosen, cluster, mix, seed)


def _made(
    chosen: Mapping[LatencyClass, PolicyChoice], cluster: Cluster, mix: Mix, seed: int
) -> dict[LatencyClass, Policy]:
    made = {choice.label: choice.make(cluster, mix, seed) for choice in chosen.values()}
    return {each: made[choice.label] for each, choice in chosen.items()}


def choose_policy(name_or_path: str) -> PolicyChoice:
    """The policy of that name, or of that file if it ends in ``.toml``. Raises UserError with what can be written."""
    if name_or_path.endswith(".toml"):
        return read_policy_file(Path(name_or_path))
    if name_or_path not in POLICIES:
        raise UserError(f"no policy is called {name_or_path!r}; write one of {_known()} or the path of a .toml file")
    return PolicyChoice(name_or_path, name_or_path)


def read_policy_file(path: Path) -> PolicyChoice:
    """Read and check a policy file. Raises InputError that names the file and the key."""
    content = read_toml(path, WANT)
    name = content.get("policy")
    if not isinstance(name, str) or name not in POLICIES:
        what = f"is {seen(name)}" if "policy" in content else "is missing"
        raise InputError(str(path), f"{what}; write one of {_known()}", field="policy")
    for key in content:
        if key not in _KEYS:
            raise InputError(str(path), f"is no key of a policy file; {_meant(name, key)}", field=plain(key))
    weights = content.get("weights", {})
    if not isinstance(weights, dict):
        raise InputError(str(path), f"is {seen(weights)}; write a table: [weights]", field="weights")
    label = str(path) if path.stem in POLICIES else path.stem
    return PolicyChoice(name, plain(label), _checked(path, name, weights))


def _meant(name: str, key: str) -> str:
    """What to do about a key that is not one."""
    if key in _weights_of(name):
        return "it is a weight: write it below the line [weights]"
    close = get_close_matches(key, _KEYS, n=1)
    return f"did you mean {close[0]}?" if close else f"write {' or '.join(_KEYS)}, or remove it"


def _weights_of(name: str) -> list[str]:
    return [each.name for each in fields(WEIGHED[name])] if name in WEIGHED else []


def _checked(path: Path, name: str, weights: dict[str, object]) -> dict[str, float]:
    known = _weights_of(name)
    checked: dict[str, float] = {}
    for key, value in weights.items():
        where = f"weights.{plain(key)}"
        if key not in known:
            can = f"write one of {', '.join(known)}" if known else f"policy {name} takes no weights"
            raise InputError(str(path), f"is not a weight of {name}; {can}", field=where)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= WEIGHT_MAX:
            message = f"is {seen(value)}; write a number of 0 or more, at most {WEIGHT_MAX:,.0f}"
            raise InputError(str(path), message, field=where)
        checked[key] = float(value)
    return checked


def _known() -> str:
    return ", ".join(POLICIES)


def policy_file_text(name: str, weights: Mapping[str, float], comments: Sequence[str] = ()) -> str:
    """The content of a policy file. Comments go on top, a line each."""
    lines = [*(f"# {plain(comment)}" for comment in comments), f'policy = "{name}"', "", "[weights]"]
    return "\n".join([*lines, *(f"{key} = {value!r}" for key, value in weights.items())]) + "\n"
