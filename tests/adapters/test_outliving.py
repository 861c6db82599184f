"""A process moves to a cgroup of its own, or stays and that is told. The folder stands in for the kernel's."""

from __future__ import annotations

from cardwise.adapters.outliving import let_outlive


def test_the_process_moves_and_another_after_it(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    for pid in (41, 42):
        assert let_outlive(pid, "mps", tmp_path)
        assert (tmp_path / "mps" / "cgroup.procs").read_text() == f"{pid}\n"


def test_without_the_unified_hierarchy_it_stays(tmp_path):
    assert not let_outlive(41, "mps", tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_the_kernel_refuses_it_stays(tmp_path):
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "mps" / "cgroup.procs").mkdir(parents=True)  # cannot be written
    assert not let_outlive(41, "mps", tmp_path)
