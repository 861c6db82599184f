"""The example with a real model: its page's commands as typed, on other ports, and what the model answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version

import httpx2
import pytest

from tests.conftest import ROOT
from tests.ports import free_ports

np = pytest.importorskip("numpy")
onnxruntime = pytest.importorskip(
    "onnxruntime", reason="onnxruntime is absent: it is in the group dev of pyproject.toml"
)
pytest.importorskip("onnx", reason="onnx is absent: it is in the group dev of pyproject.toml")
sklearn_datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is absent: it is in the group dev")

INFER = "/v2/models/digits/infer"
ARGV0 = {"python": [sys.executable], "cardwise": [sys.executable, "-m", "cardwise"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The example, its model trained, and its ports free ones."""
    folder = tmp_path_factory.mktemp("user") / "onnx"
    shutil.copytree(ROOT / "examples" / "onnx", folder)
    ports = dict(zip(("8103", "8080", "9090"), map(str, free_ports(3)), strict=True))
    assert "right on 97" in run(folder, "python train.py")
    for name in ("README.md", "gateway.toml"):
        text = (folder / name).read_text()
        (folder / name).write_text(re.sub("|".join(ports), lambda found: ports[found[0]], text))
    return folder


def commands(folder, section):
    text = (folder / "README.md").read_text().partition(f"\n## {section}\n")[2]
    block = re.search(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    return [line.removeprefix("$ ") for line in block.splitlines()]


def argv(command):
    first, *rest = shlex.split(command)
    return [*ARGV0[first], *rest]


def run(folder, command):
    done = subprocess.run(argv(command), cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def started(folder, servers):
    with contextlib.ExitStack() as running:
        for command in servers:
            log = running.enter_context((folder / "log").open("ab"))
            process = running.enter_context(subprocess.Popen(argv(command), cwd=folder, stdout=log, stderr=log))
            running.callback(process.terminate)
        yield


async def until_ready(client, folder):
    try:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get("/v2/models/digits/ready")).status_code == 200:
                        return
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail((folder / "log").read_text())


def body(rows, name=None):
    tensor = {"name": "x", "datatype": "FP32", "shape": list(rows.shape), "data": rows.ravel().tolist()}
    return {"inputs": [tensor]} if name is None else {"id": name, "inputs": [tensor]}


def outputs(answer):
    assert answer.status_code == 200, answer.text
    return {output["name"]: np.array(output["data"]).reshape(output["shape"]) for output in answer.json()["outputs"]}


@pytest.mark.parametrize("section", ["The gateway makes the batches", "The server makes the batches"])
async def test_each_row_gets_what_the_model_answers_to_it_alone_though_rows_ran_together(folder, section):
    *servers, asks = commands(folder, section)
    url = shlex.split(asks)[-1]
    rows = sklearn_datasets.load_digits().data[1000:1160].astype(np.float32)
    session = onnxruntime.InferenceSession(folder / "digits.onnx", providers=["CPUExecutionProvider"])
    alone = [session.run(["digit", "probabilities"], {"x": row[None]}) for row in rows]

    with started(folder, servers):
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            await until_ready(client, folder)
            metadata = (await client.get("/v2/models/digits")).json()
            assert metadata["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
            wrong = asyncio.create_task(client.post(INFER, json=body(rows[:1, :60])))
            several = asyncio.create_task(client.post(INFER, json=body(rows[:5])))

            answers = [None] * len(rows)
            left = iter(range(len(rows)))

            async def caller():
                for i in left:
                    answers[i] = await client.post(INFER, json=body(rows[i : i + 1], f"n{i}"))

            await asyncio.gather(*(caller() for _ in range(32)))
            for i, (answer, (digit, probabilities)) in enumerate(zip(answers, alone, strict=True)):
                got = outputs(answer)
                assert got["digit"].tolist() == digit.tolist()
                np.testing.assert_allclose(got["probabilities"], probabilities, atol=1e-5)
                assert answer.json()["id"] == f"n{i}"
            together = [answer.json()["parameters"]["together"] for answer in answers]
            assert max(together) > 1
            assert max(together) <= 32
            assert outputs(await several)["digit"].tolist() == [int(digit[0]) for digit, _ in alone[:5]]
            assert (await wrong).status_code == 400

        told = run(folder, asks)
        assert "400 of 400 answers are those of the model run alone" in told
        runs, most = map(int, re.search(r"ran (\d+) times, on \d+ to (\d+) rows", told).groups())
        assert runs < 400
        assert most > 1


def test_the_pinned_versions_are_those_that_were_tested_here():
    pinned = dict(
        re.findall(r"^([a-z-]+)==([0-9.]+)$", (ROOT / "examples/onnx/requirements.txt").read_text(), re.MULTILINE)
    )
    assert len(pinned) >= 4
    assert pinned == {name: version(name) for name in pinned}
