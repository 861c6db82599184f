"""Files of the user's: what is read, what is written to, and what is never replaced."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cardwise.errors import InputError, UserError
from cardwise.files import check_output, plain, read_text, seen, write_text


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    real, link = tmp_path / "real" / "r.html", tmp_path / "link.html"
    real.write_text("old")
    link.symlink_to(real)
    write_text(link, "new")
    assert (link.is_symlink(), real.read_text(), list((tmp_path / "real").iterdir())) == (True, "new", [real])


def test_a_link_to_a_file_that_is_not_there_yet_makes_that_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "later")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "later").read_text() == "new"
    assert (tmp_path / "link").is_symlink()


def test_a_link_to_itself_is_refused_and_stays(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(UserError, match=r"loop: cannot be written \(Too many levels of symbolic links\)"):
        write_text(loop, "new")
    assert loop.is_symlink()


def test_a_device_is_written_to_and_stays_a_device():
    master, slave = os.openpty()  # /dev/pts takes no files: whatever we do wrong, even root cannot replace it
    device = Path(os.ttyname(slave))
    write_text(device, "new")
    assert (os.read(master, 3), device.is_char_device()) == (b"new", True)
    os.close(master)
    os.close(slave)


def test_a_named_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write_text, args=(pipe, "new"))
    writer.start()
    assert pipe.read_text() == "new"
    writer.join()
    assert pipe.is_fifo()


def test_stdout_that_is_a_file_is_appended_to_not_swapped(tmp_path):
    script = (
        "from pathlib import Path; from cardwise.files import write_text; "
        "print('first', flush=True); write_text(Path('/dev/stdout'), 'report\\n'); print('last')"
    )
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nreport\nlast\n"


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="is a directory; give the name of a file to write"):
        write_text(tmp_path, "new")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("no/r.html", r"no/r\.html: cannot be written \(there is no folder .*/no\)", id="no folder"),
        pytest.param("file/r.html", r"file/r\.html: cannot be written \(Not a directory\)", id="a file as folder"),
        pytest.param(".", "is a directory; give the name of a file to write", id="folder"),
        pytest.param("n" * 300, "File name too long", id="long name"),
    ],
)
def test_an_output_that_cannot_be_written_is_told_before_the_work(tmp_path, name, message):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=message):
        check_output(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_takes_no_files_is_told_before_the_work(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="takes nothing from this user"):
        check_output(tmp_path / "r.html")


def test_an_input_is_not_written_over_whatever_it_is_called(tmp_path):
    pods, link = tmp_path / "pods.csv", tmp_path / "link.html"
    pods.write_text("old")
    link.symlink_to(pods)
    for path in (pods, link):
        with pytest.raises(UserError, match=r"is read by this command \(.*pods\.csv\); give another file to write"):
            check_output(path, [tmp_path / "nodes.csv", pods])


def test_the_same_device_may_be_read_and_written():
    check_output(Path(os.devnull), [Path(os.devnull)])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="device"),
    ],
)
def test_an_input_that_may_never_end_is_refused(tmp_path, make):
    make(tmp_path / "input")
    with pytest.raises(InputError, match=r"input: is a (named pipe|device); give a dump"):
        read_text(tmp_path / "input", "a dump")


def test_a_shells_pipe_is_read():
    script = "from pathlib import Path; from cardwise.files import read_text; print(read_text(Path('/dev/stdin'), 'x'))"
    done = subprocess.run([sys.executable, "-c", script], input="told", capture_output=True, text=True, check=True)
    assert done.stdout == "told\n"


def test_a_value_that_python_cannot_print_is_still_shown():
    assert seen(10**5000) == "a value too long to show"


def test_text_of_users_has_no_control_characters_left():
    assert plain("a\x1b[31m\n\u202eb\udcff[/x]") == r"a\x1b[31m\n\u202eb\udcff[/x]"
