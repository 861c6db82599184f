"""An engine's share of its card: a variable at admission, a number with the Binding, never more than the slice."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
from fractions import Fraction

import msgspec
import pytest
from aiohttp import ClientSession
from hypothesis import given
from hypothesis import strategies as st

from cardwise.adapters import wire
from cardwise.adapters.claims import claim_of
from cardwise.adapters.extender_v1 import ExtenderBindingArgs
from cardwise.adapters.hollow import apply_patch
from cardwise.adapters.kube_objects import Pod
from cardwise.adapters.listening import serve
from cardwise.adapters.watching import Watching
from cardwise.core.capacity.engines import ENGINES, margin_mib
from cardwise.core.request import Isolation
from cardwise.errors import UserError
from cardwise.scheduler.binder import Binder
from cardwise.scheduler.engines import EnginePolicy, Rules, granted_share, memories_of
from cardwise.scheduler.extender import Extender
from cardwise.scheduler.server import Parts, Server
from cardwise.scheduler.webhook import admit_with
from tests.builders import CARD_MIB, card, node
from tests.scheduler.fake_cluster import FakeCluster, books, pod

OURS = "$(CARDWISE_ENGINE_SHARE)"
FLAG = "--gpu-memory-utilization"
SERVE = ["serve", "some/model"]


def limits(mib=8192, **more):
    return {wire.GPU: "1", wire.USER_MEMORY: str(mib), wire.USER_CORES: "30", **more}


def raw(*args, engine="vllm", policy=None, asked=None, annotations=None, containers=None, **container):
    told = {wire.ANNOTATION_ENGINE: engine, **(annotations or {})}
    if policy:
        told[wire.ANNOTATION_ENGINE_POLICY] = policy
    app = {
        "name": "app",
        "resources": {"limits": asked or limits()},
        **({"args": list(args)} if args else {}),
        **container,
    }
    return {
        "metadata": {"name": "p", "namespace": "ns", "annotations": told},
        "spec": {"containers": containers or [app]},
    }


def patch_applied(made, patch):
    made = copy.deepcopy(made)
    apply_patch(made, patch)
    return made


def admitted(made, *memories, policy=EnginePolicy.REWRITE):
    """The container and the warnings, in a cluster that has cards of these sizes."""
    answer = admit_with(msgspec.convert(made, Pod), made, Rules(policy, lambda _shape: memories or (CARD_MIB,)))
    return patch_applied(made, answer.patch), answer.warnings


def argv(made, *memories, **more):
    container = admitted(made, *memories, **more)[0]["spec"]["containers"][0]
    return [*container.get("command", ()), *container.get("args", ())]


def denied(made, *memories):
    with pytest.raises(UserError) as caught:
        admitted(made, *memories)
    return str(caught.value)


# ---------------------------------------------------------------- rewrite, the default


SPELLINGS = pytest.mark.parametrize(
    "told",
    [[f"{FLAG}=0.9"], [FLAG, "0.9"], ["--gpu_memory_utilization=0.9"], [FLAG, "0.2", f"{FLAG}=0.9"], [FLAG]],
    ids=["one argument", "two arguments", "underscores", "twice", "no value"],
)


@SPELLINGS
def test_a_share_that_breaks_the_slice_becomes_the_slices_own(told):
    """Case C36."""
    assert argv(raw(*SERVE, *told)) == [*SERVE, f"{FLAG}={OURS}"]


@pytest.mark.parametrize(
    "told",
    ["1e999999999", "-1", "nan", "inf", "\u0660.\u0661", "1/9", "0." + "1" * 5000],
    ids=lambda it: ascii(it)[:20],
)
def test_a_share_that_is_no_number_of_a_countable_size_becomes_the_slices_own(told):
    """The first was counted out, and held up the webhook and with it every pod of the cluster."""
    assert argv(raw(*SERVE, f"{FLAG}={told}")) == [*SERVE, f"{FLAG}={OURS}"]


def test_the_cards_are_looked_at_once_however_often_a_share_is_told():
    """A pod holds 50,000 of them, and a cluster as many cards."""
    looked = []
    rules = Rules(EnginePolicy.REWRITE, lambda shape: looked.append(shape) or (CARD_MIB,))
    made = raw(*SERVE, *(f"{FLAG}=0.0{i}1" for i in range(1, 100)))
    admit_with(msgspec.convert(made, Pod), made, rules)
    assert len(looked) == 1


def test_dashes_and_underscores_may_stand_in_one_name():
    """Source: FlexibleArgumentParser in vllm/utils/argparse_utils.py."""
    assert argv(raw(*SERVE, "--gpu_memory-utilization=0.9")) == [*SERVE, f"{FLAG}={OURS}"]
    assert "is not known to fit" in denied(raw(*SERVE, "--kv_cache-memory_bytes=80G"))


def test_what_stands_after_the_share_stays_in_its_place():
    assert argv(raw(*SERVE, FLAG, "0.9", "--port", "80")) == [*SERVE, f"{FLAG}={OURS}", "--port", "80"]


def test_a_share_in_the_command_is_rewritten_there():
    made = admitted(raw("--port=80", command=["vllm", *SERVE, FLAG, "0.9"]))[0]["spec"]["containers"][0]
    assert (made["command"], made["args"]) == (["vllm", *SERVE, f"{FLAG}={OURS}"], ["--port=80"])


def test_a_share_that_is_missing_is_added_because_the_engine_would_take_most_of_the_card():
    made, warnings = admitted(raw(*SERVE))
    assert made["spec"]["containers"][0]["args"] == [*SERVE, f"{FLAG}={OURS}"]
    assert warnings == (f"container app: {FLAG}={OURS} was added: engine vllm would take more than the slice",)


def test_a_share_that_is_missing_is_added_to_args_where_only_a_command_is_told():
    made = admitted(raw(command=["vllm", *SERVE]))[0]["spec"]["containers"][0]
    assert (made["command"], made["args"]) == (["vllm", *SERVE], [f"{FLAG}={OURS}"])


def test_whoever_created_the_pod_hears_of_the_rewriting_and_the_pod_keeps_what_was_there():
    made, warnings = admitted(raw(*SERVE, f"{FLAG}=0.9"))
    assert warnings == (f"container app: {FLAG} 0.9 may take more than the slice; it became {FLAG}={OURS}",)
    assert made["metadata"]["annotations"][wire.ANNOTATION_ENGINE_BEFORE] == f"{FLAG} 0.9"


def test_the_container_gets_its_share_from_the_annotation_that_comes_with_the_binding():
    env = admitted(raw(*SERVE))[0]["spec"]["containers"][0]["env"]
    assert env[0] == {
        "name": "CARDWISE_ENGINE_SHARE",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['cardwise.dev/engine-share']"}},
    }


@pytest.mark.parametrize("told", [[f"{FLAG}=0.3125"], [f"{FLAG}=0.2"], [f"{FLAG}={OURS}"]])
def test_a_share_that_holds_on_every_card_stays(told):
    made, warnings = admitted(raw(*SERVE, *told))
    assert (made["spec"]["containers"][0]["args"], warnings) == ([*SERVE, *told], ())


def test_a_share_that_holds_on_one_card_and_not_on_another_is_rewritten():
    assert argv(raw(*SERVE, f"{FLAG}=0.3"), CARD_MIB, 81920) == [*SERVE, f"{FLAG}={OURS}"]


def test_a_share_is_not_known_to_hold_while_no_card_is_known():
    made = raw(*SERVE, f"{FLAG}=0.1")
    assert admit_with(msgspec.convert(made, Pod), made, Rules()).warnings


def test_what_was_admitted_is_admitted_again_without_a_change_or_a_word():
    once, _ = admitted(raw(*SERVE, f"{FLAG}=0.9"))
    assert admitted(once) == (once, ())


def test_the_share_is_looked_for_in_the_cards_that_the_pod_allows():
    ledger = books(node("n0", [card(model="A10")]), node("n1", [card(model="A100", memory_mib=81920)]))
    rules = Rules(memories_mib=memories_of(ledger))
    for model, kept in (("A10", True), ("A10,A100", False)):
        made = raw(*SERVE, f"{FLAG}=0.3", annotations={wire.ANNOTATION_GPU_MODEL: model})
        assert (not admit_with(msgspec.convert(made, Pod), made, rules).warnings) is kept


@given(
    st.floats(0.01, 1, allow_nan=False).map(lambda share: f"{share:.4f}"),
    st.integers(1024, CARD_MIB),
    st.lists(st.sampled_from([16384, CARD_MIB, 40960, 81920]), min_size=1),
)
def test_a_share_that_was_left_takes_no_more_than_the_slice_on_any_card_that_has_room_for_it(share, mib, memories):
    kept = argv(raw(*SERVE, f"{FLAG}={share}", asked=limits(mib)), *memories)[-1]
    if kept != f"{FLAG}={OURS}":
        assert all(Fraction(share) * each <= mib - margin_mib(mib) for each in memories if each >= mib)


# ---------------------------------------------------------------- other policies


def test_deny_says_what_the_share_takes_and_what_to_write():
    told = denied(raw(*SERVE, f"{FLAG}=0.9", policy="deny"))
    assert (
        f"container app: {FLAG} 0.9 takes 22118 of 24576 MiB, the slice has room for 7680; write {FLAG}={OURS}" in told
    )


def test_deny_names_the_default_that_an_engine_takes_unless_told():
    assert f"no {FLAG} takes 22609 of 24576 MiB" in denied(raw(*SERVE, policy="deny"))


def test_deny_lets_the_variable_and_a_small_share_pass():
    for told in (OURS, "0.3"):
        assert argv(raw(*SERVE, f"{FLAG}={told}", policy="deny")) == [*SERVE, f"{FLAG}={told}"]


def test_add_leaves_what_a_user_wrote_and_warns():
    made, (warning,) = admitted(raw(*SERVE, f"{FLAG}=0.9", policy="add"))
    assert made["spec"]["containers"][0]["args"] == [*SERVE, f"{FLAG}=0.9"]
    assert "was left, and may take more than the slice" in warning


def test_add_adds_where_there_is_none():
    assert argv(raw(*SERVE, policy="add")) == [*SERVE, f"{FLAG}={OURS}"]


def test_the_clusters_policy_counts_unless_the_pod_has_its_own():
    with pytest.raises(UserError):
        admitted(raw(*SERVE), policy=EnginePolicy.DENY)
    assert admitted(raw(*SERVE, policy="rewrite"), policy=EnginePolicy.DENY)


# ---------------------------------------------------------------- what is not read


SHELL = ["sh", "-c", f"vllm serve some/model {FLAG} 0.9"]


@pytest.mark.parametrize(
    "command",
    [SHELL, ["/bin/bash", "-lc", "vllm serve x"], ["tini", "--", "sh", "-c", "vllm serve x"], ["bash", "run.sh"]],
    ids=["sh -c", "bash -lc", "behind tini", "a script"],
)
@pytest.mark.parametrize("policy", ["rewrite", "deny"])
def test_a_command_that_goes_through_a_shell_is_denied_and_not_half_read(command, policy):
    told = denied(raw(command=command, policy=policy))
    assert "goes through a shell, which cardwise does not read; write" in told
    assert f"{FLAG} $CARDWISE_ENGINE_SHARE there" in told


def test_a_shell_is_left_alone_with_a_warning_where_shares_are_only_added():
    made, (warning,) = admitted(raw(command=SHELL, policy="add"))
    assert made["spec"]["containers"][0]["command"] == SHELL
    assert "args" not in made["spec"]["containers"][0]
    assert "which cardwise does not read" in warning


def test_a_shell_that_uses_our_variable_is_admitted_as_it_is():
    command = ["sh", "-c", f"vllm serve some/model {FLAG} $CARDWISE_ENGINE_SHARE"]
    made, warnings = admitted(raw(command=command))
    assert (made["spec"]["containers"][0]["command"], warnings) == (command, ())


def test_nothing_is_added_where_args_would_stand_in_place_of_the_images_own():
    assert "write the image's command line as args" in denied(raw())


# ---------------------------------------------------------------- other engines


def test_sglang_and_tgi_have_flags_of_their_own():
    assert argv(raw("--model-path=x", engine="sglang")) == ["--model-path=x", f"--mem-fraction-static={OURS}"]
    assert argv(raw("--model-id=x", engine="tgi")) == ["--model-id=x", f"--cuda-memory-fraction={OURS}"]


@pytest.mark.parametrize(
    ("policy", "expected"), [("rewrite", ["--model-id=x", f"--cuda-memory-fraction={OURS}"]), ("add", ["--model-id=x"])]
)
def test_a_variable_that_says_the_share_counts_as_one(policy, expected):
    env = [{"name": "CUDA_MEMORY_FRACTION", "value": "0.9"}]
    assert argv(raw("--model-id=x", engine="tgi", env=env, policy=policy)) == expected


def test_a_variable_may_refer_to_ours_which_therefore_stands_before_it():
    """The kubelet expands what a variable refers to only if that was defined before it."""
    mine = {"name": "CUDA_MEMORY_FRACTION", "value": OURS}
    made, warnings = admitted(raw("--model-id=x", engine="tgi", env=[mine]))
    container = made["spec"]["containers"][0]
    assert [each["name"] for each in container["env"]] == ["CARDWISE_ENGINE_SHARE", mine["name"], "CARDWISE_ALLOC"]
    assert (container["args"], warnings) == (["--model-id=x"], ())


def test_a_variable_that_says_a_small_share_stays():
    env = [{"name": "CUDA_MEMORY_FRACTION", "value": "0.3"}]
    assert argv(raw("--model-id=x", engine="tgi", env=env)) == ["--model-id=x"]


@pytest.mark.parametrize("engine", ["triton", "tensorrt-llm", "onnxruntime", "pytorch"])
def test_an_engine_without_a_share_gets_the_variable_and_a_warning(engine):
    made, (warning,) = admitted(raw("run", engine=engine))
    assert made["spec"]["containers"][0]["args"] == ["run"]
    assert made["spec"]["containers"][0]["env"][0]["name"] == "CARDWISE_ENGINE_SHARE"
    assert f"engine {engine} takes no share on its command line" in warning


@pytest.mark.parametrize("amount", ["8053063681", "8G", "12GiB", "nonsense", ""])
def test_a_kv_cache_in_bytes_that_is_more_than_the_slice_is_denied(amount):
    told = denied(raw(*SERVE, f"{FLAG}=0.3", f"--kv-cache-memory-bytes={amount}"))
    assert "is not known to fit into the 7680 MiB of the slice; write less than 8053063680" in told


@pytest.mark.parametrize("amount", ["8053063680", "7.5G", "4gb"])
def test_a_kv_cache_in_bytes_that_fits_the_slice_stays(amount):
    told = [*SERVE, f"{FLAG}=0.3", "--kv-cache-memory-bytes", amount]
    assert argv(raw(*told)) == told


# ---------------------------------------------------------------- where it does not apply


def test_a_pod_without_the_annotation_is_not_touched():
    made = raw(*SERVE, f"{FLAG}=0.9")
    del made["metadata"]["annotations"][wire.ANNOTATION_ENGINE]
    after, warnings = admitted(made)
    assert (after["spec"]["containers"][0]["args"], warnings) == ([*SERVE, f"{FLAG}=0.9"], ())
    assert [each["name"] for each in after["spec"]["containers"][0]["env"]] == ["CARDWISE_ALLOC"]


def test_an_engine_that_has_its_card_alone_may_take_what_it_likes():
    made, warnings = admitted(raw(*SERVE, asked={wire.GPU: "1"}))
    assert (made["spec"]["containers"][0]["args"], warnings) == (SERVE, ())


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (raw(*SERVE, engine="vlm"), "annotation cardwise.dev/engine: 'vlm' is none of vllm, sglang"),
        (raw(*SERVE, policy="ignore"), "annotation cardwise.dev/engine-policy: 'ignore' is none of rewrite, add, deny"),
        (raw(*SERVE, asked=limits(512)), "512 MiB leave engine vllm nothing: 512 MiB go to its CUDA context"),
        (raw(*SERVE, annotations={wire.ANNOTATION_PROCESSES: "2"}), "goes without cardwise.dev/processes"),
        (
            raw(*SERVE, annotations={wire.ANNOTATION_ENGINE_SHARE: "0.9"}),
            "annotation cardwise.dev/engine-share: is written by the scheduler alone; remove it",
        ),
        (
            raw(*SERVE, env=[{"name": "CARDWISE_ENGINE_SHARE", "value": "0.9"}]),
            "env CARDWISE_ENGINE_SHARE is set by cardwise; remove it",
        ),
        (
            raw(containers=[{"name": each, "resources": {"limits": limits()}} for each in ("a", "b")]),
            "is for a pod in which one container asks for cards, here a, b; remove it",
        ),
        (raw("serve", 1), "container app: command and args are lists of texts; put each in quotes"),
    ],
    ids=["engine", "policy", "tiny slice", "processes", "share", "variable", "two containers", "a number"],
)
def test_what_makes_no_sense_is_denied_with_what_to_write(made, told):
    assert told in denied(made)


def test_a_policy_without_an_engine_is_denied():
    made = raw(*SERVE, policy="deny")
    del made["metadata"]["annotations"][wire.ANNOTATION_ENGINE]
    assert "says nothing without cardwise.dev/engine" in denied(made)


# ---------------------------------------------------------------- with the Binding


async def bound(made, *cards, more=None):
    """The annotations that come with the Binding on a node of these cards, and the events."""
    made = pod(limits=limits(), annotations={wire.ANNOTATION_ENGINE: "vllm", **(more or {})}) if made is None else made
    api, ledger = FakeCluster(made), books(node("n0", cards))
    binder = Binder(api, ledger, Extender(ledger, lambda: 0.0), lambda: None)
    assert await binder.bind(ExtenderBindingArgs("a", "ns", "uid-a", "n0")) == ""
    async with asyncio.timeout(20):
        while made.metadata.annotations.get(wire.ANNOTATION_ENGINE) and not api.events:
            await asyncio.sleep(0)
    return api.bindings[0].annotations, api.events


@pytest.mark.parametrize(
    ("on", "share"),
    [
        (card(memory_mib=24576), "0.3125"),
        (card(model="A100", memory_mib=81920), "0.0937"),
        (card(memory_mib=9856, isolation=Isolation.MIG), "0.7792"),
    ],
    ids=["24 GiB", "80 GiB", "a MIG instance"],
)
async def test_the_share_is_of_the_card_that_was_chosen(on, share):
    """Case C36: 7680 of what the engine sees, whichever card that is."""
    told = {wire.ANNOTATION_ISOLATION: "mig"} if on.isolation is Isolation.MIG else {}
    annotations, _ = await bound(None, on, more=told)
    assert annotations[wire.ANNOTATION_ENGINE_SHARE] == share


async def test_the_pods_event_says_the_share_and_what_it_replaced():
    told = {wire.ANNOTATION_ENGINE_BEFORE: f"{FLAG} 0.9"}
    _, [event] = await bound(None, card(), more=told)
    text = f"engine vllm gets {FLAG} 0.3125 of what it sees of its card, instead of {FLAG} 0.9"
    assert event == ("ns", "a", text)


async def test_a_pod_without_an_engine_gets_no_share_and_no_event():
    annotations, events = await bound(pod(limits=limits()), card())
    assert (set(annotations), events) == ({wire.ANNOTATION_ALLOC}, [])


async def test_a_slice_that_leaves_an_engine_nothing_is_told_so_and_gets_a_share_that_no_engine_starts_with():
    made = pod(
        limits={wire.GPU: "1", wire.HAMI_MEMORY_PCT: "2"},  # of 24576 MiB
        annotations={wire.ANNOTATION_ENGINE: "vllm"},
    )
    annotations, [event] = await bound(made, card())
    assert annotations[wire.ANNOTATION_ENGINE_SHARE] == "0"
    assert "leaves it nothing beside its CUDA context" in event[2]


async def test_a_binding_stands_though_its_event_cannot_be_written():
    api, ledger = FakeCluster(pod(limits=limits(), annotations={wire.ANNOTATION_ENGINE: "vllm"})), books(node("n0"))
    binder = Binder(api, ledger, Extender(ledger, lambda: 0.0), lambda: None)
    write = api.bind

    async def then_dead(binding):
        await write(binding)
        api.dead = True

    api.bind = then_dead
    assert await binder.bind(ExtenderBindingArgs("a", "ns", "uid-a", "n0")) == ""
    await asyncio.gather(*binder._telling)
    assert (api.events, binder.bound) == ([], 1)


@given(
    st.sampled_from(ENGINES),
    st.integers(513, CARD_MIB),
    st.lists(st.sampled_from([CARD_MIB, 40960, 81920]), min_size=1, max_size=4),
)
def test_the_share_holds_on_every_card_of_the_container(engine, mib, memories):
    made = pod(limits=limits(mib, **{wire.GPU: str(len(memories))}), annotations={wire.ANNOTATION_ENGINE: engine})
    ledger = books(node("n0", [card(memory_mib=each) for each in memories]))
    claim = claim_of(made)
    allocation = ledger.hold(claim, "n0")
    cards = {each.uuid: each for each in ledger.nodes["n0"].cards}
    share = Fraction(granted_share(claim, allocation, cards))
    assert all(share * each <= mib - margin_mib(mib) for each in memories)


# ---------------------------------------------------------------- over HTTP


async def test_the_webhook_answers_with_the_patch_and_the_warnings():
    ledger, api = books(node("n0")), FakeCluster()
    extender = Extender(ledger, lambda: 0.0)
    rules = Rules(memories_mib=memories_of(ledger))
    binder = Binder(api, ledger, extender, lambda: None)
    server = Server(Parts(api, ledger, Watching(ledger), extender, binder, lambda: None, rules))
    door, port = await serve(server.webhook_app(), "127.0.0.1", 0, None)
    review = {"request": {"uid": "u", "object": raw(*SERVE, f"{FLAG}=0.9")}}
    async with ClientSession() as session, session.post(f"http://127.0.0.1:{port}/admit", json=review) as answer:
        told = json.loads(await answer.text())["response"]
    await door.cleanup()
    made = patch_applied(review["request"]["object"], json.loads(base64.b64decode(told["patch"])))
    assert made["spec"]["containers"][0]["args"] == [*SERVE, f"{FLAG}={OURS}"]
    assert told["warnings"] == [
        f"cardwise: container app: {FLAG} 0.9 may take more than the slice; it became {FLAG}={OURS}"
    ]
