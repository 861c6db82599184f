"""Policy files: a policy's name and weights, as ``cardwise tune`` writes them and replay and the scheduler load them.

One TOML file::

    policy = "dense"

    [weights]
    sliver = 1.5

Refuses unknown policies, unknown weights and values that are not numbers of 0 or more: no typo becomes a default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from cardwise.core.cluster import Cluster
from cardwise.core.placement.mix import Mix
from cardwise.core.placement.policies import POLICIES, Balanced, BalancedWeights, Dense, DenseWeights, make_policy
from cardwise.core.placement.policy import Policy
from cardwise.errors import InputError, UserError
from cardwise.files import read_text

WANT = "a policy file, as `cardwise tune` writes it"
WEIGHED: dict[str, type[DenseWeights | BalancedWeights]] = {
    Dense.name: DenseWeights,
    Balanced.name: BalancedWeights,
}
"""Policies that take weights, and the weights they take."""


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy to use: by name with its default weights, or with those of a file.

    label: how reports call it: the name, or the file's stem.
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


def choose_policy(name_or_path: str) -> PolicyChoice:
    """The policy of that name, or of that file if it ends in ``.toml``. Raises UserError with what can be written."""
    if name_or_path.endswith(".toml"):
        return read_policy_file(Path(name_or_path))
    if name_or_path not in POLICIES:
        raise UserError(f"no policy is called {name_or_path!r}; write one of {_known()} or the path of a .toml file")
    return PolicyChoice(name_or_path, name_or_path)


def read_policy_file(path: Path) -> PolicyChoice:
    """Read and check a policy file. Raises InputError that names the file and the key."""
    try:
        content = tomllib.loads(read_text(path, WANT))
    except tomllib.TOMLDecodeError as error:
        raise InputError(str(path), f"is not TOML: {error}; give {WANT}") from error
    name = content.get("policy")
    if name not in POLICIES:
        raise InputError(str(path), f"is {name!r}; write one of {_known()}", field="policy")
    weights = content.get("weights", {})
    if not isinstance(weights, dict):
        raise InputError(str(path), f"is {weights!r}; write a table: [weights]", field="weights")
    return PolicyChoice(name, path.stem, _checked(path, name, weights))


def _checked(path: Path, name: str, weights: dict[str, object]) -> dict[str, float]:
    known = [each.name for each in fields(WEIGHED[name])] if name in WEIGHED else []
    checked: dict[str, float] = {}
    for key, value in weights.items():
        if key not in known:
            can = f"write one of {', '.join(known)}" if known else f"policy {name} takes no weights"
            raise InputError(str(path), f"is not a weight of {name}; {can}", field=f"weights.{key}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(str(path), f"is {value!r}; write a number of 0 or more", field=f"weights.{key}")
        checked[key] = float(value)
    return checked


def _known() -> str:
    return ", ".join(POLICIES)


def policy_file_text(name: str, weights: Mapping[str, float], comments: Sequence[str] = ()) -> str:
    """The content of a policy file. Comments go on top, a line each."""
    lines = [*(f"# {comment}" for comment in comments), f'policy = "{name}"', "", "[weights]"]
    return "\n".join([*lines, *(f"{key} = {value!r}" for key, value in weights.items())]) + "\n"
