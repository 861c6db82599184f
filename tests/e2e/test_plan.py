"""What ``cardwise plan -o yaml`` writes, before a real API server: every field known, and every value taken."""

from __future__ import annotations

import pytest
import yaml

from cardwise.adapters.models import Model
from cardwise.core.capacity.replicas import Measured
from cardwise.plan.catalogue import find_model
from cardwise.plan.manifest import manifest
from cardwise.plan.planner import Wish, make_plan
from cardwise.plan.tables import tables

pytestmark = pytest.mark.controlplane

PATHS = {"Deployment": "/apis/apps/v1/namespaces/default/deployments", "Service": "/api/v1/namespaces/default/services"}
LLAMA = find_model("llama-3.2-1b")


@pytest.mark.parametrize(
    ("model", "wish"),
    [
        *((LLAMA, Wish(engine=engine)) for engine in ("vllm", "sglang", "tgi", "tensorrt-llm")),
        *((LLAMA, Wish(isolation=mode)) for mode in ("mps", "mig", "time-slicing", "whole")),
        *((find_model("bge-m3"), Wish(engine=engine)) for engine in ("vllm", "triton", "onnxruntime", "pytorch")),
        (find_model("whisper-large-v3"), Wish()),
        (LLAMA, Wish(tp=2, rate_per_s=900.0, measured=Measured(10.0, 100))),
        (Model("A\nb 模型 $(HOME) " + "x" * 200, LLAMA.shape), Wish()),
    ],
    ids=lambda it: str(it.name)[:20].encode("unicode_escape").decode() if isinstance(it, Model) else it.engine or "",
)
def test_a_manifest_is_taken_as_it_is(control_plane, model, wish):
    for each in yaml.safe_load_all(manifest(make_plan(model, wish, tables()))):
        path = f"{PATHS[each['kind']]}?dryRun=All&fieldValidation=Strict"
        status, answer = control_plane.answer("POST", path, each)
        assert status == 201, answer
