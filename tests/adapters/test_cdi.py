"""The container toolkit's files as runtimes read them, and garbage beside them, which is nobody's concern."""

from __future__ import annotations

import json
import os
import threading

import pytest

from cardwise.adapters.cdi import Edits, SlotFiles, ToolkitFiles, read_toolkit
from cardwise.errors import ClusterError

BOMB = "&a [" + ",".join("x" * 9) + "]"


def device(name, **edits):
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/{name}"}], **edits}}


def spec(*devices, common=None, version="0.6.0", kind="nvidia.com/gpu", **more):
    return {"cdiVersion": version, "kind": kind, "devices": devices, "containerEdits": common or {}, **more}


@pytest.fixture
def folders(tmp_path):
    made = [tmp_path / "etc", tmp_path / "run"]
    for folder in made:
        folder.mkdir()
    return made


def write(folder, name, told):
    (folder / name).write_text(told if isinstance(told, str) else json.dumps(told))


def paths(edits):
    return [node["path"] for node in edits["deviceNodes"]]


def bomb():
    names = "abcdefghi"
    lines = [f"  x{i}: &{names[i]} [{','.join([f'*{names[i - 1]}'] * 9)}]" for i in range(1, 9)]
    return "\n".join(["cdiVersion: 0.6.0", "kind: nvidia.com/gpu", "containerEdits:", f"  x0: {BOMB}", *lines])


GARBAGE = {
    "deep.yaml": "[" * 5000,
    "deep.json": '{"kind":' + "[" * 200_000,
    "typed.json": '{"cdiVersion":"1","kind":"nvidia.com/gpu","containerEdits":{"env":' + "[" * 200_000,
    "bomb.yaml": bomb(),
    "nul.yaml": "kind: \0",
    "empty.json": "",
    "list.json": "[]",
    "number.yaml": "cdiVersion: 0.6\nkind: nvidia.com/gpu\ndevices: 7\n",
    "date.yaml": "cdiVersion: 0.6.0\nkind: 2026-13-45\n",
    "itself.yaml": "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ncontainerEdits: &a {x: *a}\n",
    "tag.yaml": "!!python/object/apply:os.system [id]\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_beside_the_toolkits_file_is_skipped(folders, name):
    write(folders[0], "nvidia.json", spec(device("0")))
    write(folders[1], name, GARBAGE[name])
    assert list(read_toolkit(folders).devices) == ["0"]


def test_what_is_no_regular_file_is_skipped_and_not_waited_for(folders):
    write(folders[0], "nvidia.json", spec(device("0")))
    os.mkfifo(folders[0] / "pipe.json")
    (folders[0] / "folder.json").mkdir()
    (folders[0] / "loop.json").symlink_to(folders[0] / "loop.json")
    (folders[0] / "zero.json").symlink_to("/dev/zero")
    reading = threading.Thread(target=read_toolkit, args=(folders,), daemon=True)
    reading.start()
    reading.join(60)
    assert not reading.is_alive()


def test_without_a_file_of_the_toolkit_it_is_said_what_was_wrong_with_others(folders):
    write(folders[0], "empty.json", "")
    with pytest.raises(ClusterError, match=r"no CDI file of kind nvidia.com/gpu .*empty.json.*nvidia-ctk cdi generate"):
        read_toolkit(folders)


def test_several_files_of_the_kind_are_taken_together(folders):
    write(folders[0], "nvidia.json", spec(device("0"), device("1")))
    write(folders[1], "mine.json", spec(device("mine")))
    assert sorted(read_toolkit(folders).devices) == ["0", "1", "mine"]


def test_a_device_of_a_later_folder_stands_for_that_of_an_earlier_one(folders):
    write(folders[0], "nvidia.json", spec(device("0"), device("1")))
    write(folders[1], "nvidia.json", spec({"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/new"}]}}))
    toolkit = read_toolkit(folders)
    assert (paths(toolkit.devices["0"]), paths(toolkit.devices["1"])) == (["/dev/new"], ["/dev/1"])


def test_a_device_that_two_files_of_one_folder_describe_is_nobodys(folders):
    write(folders[0], "a.json", spec(device("0"), device("1")))
    write(folders[0], "b.json", spec(device("0")))
    assert list(read_toolkit(folders).devices) == ["1"]


def test_edits_of_all_containers_of_one_file_are_not_anothers(folders):
    write(folders[0], "nvidia.json", spec(device("0"), common={"env": ["A=1"]}))
    write(folders[1], "mine.json", spec(device("mine"), common={"env": ["B=2"]}))
    toolkit = read_toolkit(folders)
    assert toolkit.common == {}
    assert (toolkit.devices["0"]["env"], toolkit.devices["mine"]["env"]) == (["A=1"], ["B=2"])


def test_edits_that_we_do_not_know_are_kept_as_they_are(folders, tmp_path):
    common = {"intelRdt": {"closID": "x"}, "additionalGids": [44]}
    write(folders[0], "nvidia.json", spec(device("0"), common=common))
    toolkit = read_toolkit(folders)
    SlotFiles(tmp_path).write("slot-000", toolkit, [toolkit.common, toolkit.devices["0"]], Edits())
    written = json.loads((tmp_path / "cardwise.dev-slot-000.json").read_text())["devices"][0]["containerEdits"]
    assert written == {**common, "deviceNodes": [{"path": "/dev/0"}]}


def test_null_is_an_empty_list(folders):
    write(folders[0], "nvidia.json", spec(device("0", hooks=None), annotations=None))
    write(folders[1], "none.json", {**spec(), "devices": None, "containerEdits": None})
    assert "hooks" not in read_toolkit(folders).devices["0"]


def test_a_file_is_read_again_when_it_changes_and_not_before(folders, monkeypatch):
    files = ToolkitFiles(folders)
    write(folders[0], "nvidia.json", spec(device("0")))
    assert list(files.read().devices) == ["0"]
    opened = []
    monkeypatch.setattr(os, "open", lambda path, *rest, real=os.open: opened.append(path) or real(path, *rest))
    assert (list(files.read().devices), opened) == (["0"], [])
    write(folders[0], "nvidia.json", spec(device("0"), device("1")))
    assert list(files.read().devices) == ["0", "1"]
    (folders[0] / "nvidia.json").unlink()
    with pytest.raises(ClusterError):
        files.read()


def test_thousands_of_files_of_others_are_not_opened_again(folders, monkeypatch):
    for i in range(2000):
        write(folders[0], f"v{i}.yaml", f"cdiVersion: 0.6.0\nkind: v/x{i}\ndevices: []\n")
    write(folders[0], "nvidia.json", spec(device("0")))
    files = ToolkitFiles(folders)
    opened = []
    monkeypatch.setattr(os, "open", lambda path, *rest, real=os.open: opened.append(path) or real(path, *rest))
    files.read()
    assert len(opened) == 2001
    opened.clear()
    files.read()
    assert opened == []
