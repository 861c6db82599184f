"""Policy files: what cannot be meant is refused with the key, and every policy has a name of its own."""

from __future__ import annotations

import pytest

from cardwise.config import choose_policies, choose_policy, read_policy_file
from cardwise.errors import InputError


@pytest.fixture
def policy_file(tmp_path):
    def _write(name="mine.toml", content='policy = "dense"\n'):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
        return path

    return _write


def test_files_of_one_stem_are_called_by_their_paths(policy_file):
    paths = [str(policy_file("a/mine.toml")), str(policy_file("b/mine.toml"))]
    assert [each.label for each in choose_policies([*paths, "fgd"])] == [*paths, "fgd"]


def test_a_file_named_like_a_built_in_policy_is_called_by_its_path(policy_file):
    path = str(policy_file("fgd.toml"))
    assert [each.label for each in choose_policies([path, "fgd"])] == [path, "fgd"]
    assert choose_policy(path).label == path


def test_a_policy_asked_for_twice_is_one(policy_file):
    path = str(policy_file())
    assert [each.label for each in choose_policies([path, "dense", path, "dense"])] == ["mine", "dense"]


def test_control_characters_stay_out_of_the_label(policy_file):
    assert choose_policy(str(policy_file("a\x1b[1m.toml"))).label == r"a\x1b[1m"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(
            'sliver = 9\npolicy = "dense"\n',
            "sliver: is no key of a policy file; it is a weight: write it below the line [weights]",
            id="weight on top",
        ),
        pytest.param(
            'policy = "dense"\n[weight]\n', "weight: is no key of a policy file; did you mean weights?", id="typo"
        ),
        pytest.param(
            'policy = "dense"\nxyz = 1\n',
            "xyz: is no key of a policy file; write policy or weights, or remove it",
            id="unknown key",
        ),
        pytest.param('policy = ["dense"]\n', "policy: is ['dense']; write one of whole-card", id="list"),
        pytest.param("[policy]\n", "policy: is {}; write one of whole-card", id="table"),
        pytest.param("[weights]\n", "policy: is missing; write one of whole-card", id="missing"),
        pytest.param(
            'policy = "dense"\n[weights]\nsliver = 1e308\n',
            "weights.sliver: is 1e+308; write a number of 0 or more, at most 1,000,000",
            id="1e308",
        ),
        pytest.param(f'policy = "dense"\n[weights]\nsliver = {"9" * 400}\n', "weights.sliver: is 999", id="400 digits"),
        pytest.param(f'policy = "dense"\n[weights]\nsliver = {"9" * 5000}\n', "is not TOML: ", id="5000 digits"),
        pytest.param(
            f'policy = "dense"\n[weights]\nsliver = 0x{"9" * 5000}\n',
            "weights.sliver: is a value too long to show; write a number",
            id="5000 hexadecimal digits",
        ),
        pytest.param(f"policy = {'[' * 3000}\n", "is nested too deep; give a policy file", id="nested"),
    ],
)
def test_a_policy_file_that_cannot_be_meant_names_the_key(policy_file, content, message):
    with pytest.raises(InputError) as caught:
        read_policy_file(policy_file(content=content))
    assert message in str(caught.value)


def test_a_weight_of_a_million_is_taken(policy_file):
    path = policy_file(content='policy = "dense"\n[weights]\nsliver = 1000000\n')
    assert read_policy_file(path).weights == {"sliver": 1e6}
