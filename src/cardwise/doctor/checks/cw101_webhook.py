"""CW101: the API server cannot ask the admission webhook, so pods with an ask of ours are refused at creation (C45).

Where a pod was created for trial (``trying.py``) that alone decides; else what can be seen of endpoints and trust.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cardwise.adapters.capture import Tried
from cardwise.adapters.kube_objects import EndpointSlice
from cardwise.adapters.symptoms import Event, WebhookConfiguration
from cardwise.adapters.wire import LABEL_SERVICE_NAME
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, EVERYWHERE, LIKELY, Check, Finding
from cardwise.doctor.trying import UNREACHED, hooks_of

SEE_PODS = "see why the scheduler's pods are not ready: kubectl get pods -n {} -l app.kubernetes.io/component=scheduler"
SEE_TRUST = "run helm upgrade again; with cert-manager see that its cainjector runs"
SEE_WAY = (
    "read the API server's words: a certificate means helm upgrade (with cert-manager: its cainjector), a time-out or "
    "refused connection a network policy, a firewall, or pods that do not listen: kubectl get pods -n {} -l "
    "app.kubernetes.io/component=scheduler"
)


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for all that is wrong with our webhook."""
    hooks = hooks_of(facts.capture.items)
    tried = facts.capture.beside.tried
    if not hooks or (tried is not None and tried.translated):
        return
    seen = [*_unready(facts, hooks), *_blind(hooks)]
    evidence = [*(text for _, texts, _ in seen for text in texts), *_refusals(facts)]
    if tried is not None and tried.refused:
        cause, _, action = seen[0] if seen else ("a pod with an ask was refused", (), SEE_WAY.format(_namespace(hooks)))
        told = f"a pod with an ask, for trial in namespace {tried.namespace}: {tried.refused}"
        yield _finding(cause, (told, *evidence), action, CERTAIN)
    elif seen:
        yield _finding(seen[0][0], tuple(evidence), seen[0][2], CERTAIN)
    elif tried is not None and (lax := _lax(hooks)):
        yield _passed(tried, lax)


def _finding(cause: str, evidence: tuple[str, ...], action: str, likelihood: float) -> Finding:
    told = f"the admission webhook cannot be asked: {cause}"
    return Finding("CW101", "cluster", frozenset({EVERYWHERE}), told, evidence, action, likelihood)


def _passed(tried: Tried, lax: list[str]) -> Finding:
    """It is told to be passed over where it cannot be asked, and a pod came through as it was."""
    return _finding(
        "a pod with an ask passed as it was written",
        (
            f"for trial in namespace {tried.namespace}: nobody translated its ask",
            f"failurePolicy of {', '.join(lax)} is Ignore: what it cannot be asked about passes, and waits for ever",
        ),
        "set failurePolicy: Fail, then doctor sees why it fails; or the webhook does not serve that namespace: see its "
        "namespaceSelector",
        LIKELY,
    )


def _unready(facts: Facts, hooks: Iterable[WebhookConfiguration]) -> Iterator[tuple[str, list[str], str]]:
    """Cause, evidence and action for each Service of ours without a ready endpoint."""
    services = {
        (service.namespace, service.name)
        for each in hooks
        for hook in each.webhooks
        if (service := hook.client_config.service) is not None
    }
    for namespace, name in sorted(services) if facts.saw("EndpointSlice") else ():
        ready, known = _endpoints(facts, namespace, name)
        if not ready:
            cause = f"nobody answers at Service {namespace}/{name}: {known} endpoints, none of them ready"
            yield cause, [f"its MutatingWebhookConfiguration asks {namespace}/{name}"], SEE_PODS.format(namespace)


def _blind(hooks: Iterable[WebhookConfiguration]) -> Iterator[tuple[str, list[str], str]]:
    """The same for a configuration without trust."""
    for each in hooks:
        blind = sorted(hook.name for hook in each.webhooks if not hook.client_config.ca_bundle)
        if blind:
            cause = "the API server does not know whom to trust there: caBundle is empty"
            yield cause, [f"its MutatingWebhookConfiguration: no caBundle in {', '.join(blind)}"], SEE_TRUST


def _lax(hooks: Iterable[WebhookConfiguration]) -> list[str]:
    return sorted(hook.name for each in hooks for hook in each.webhooks if hook.failure_policy == "Ignore")


def _namespace(hooks: Iterable[WebhookConfiguration]) -> str:
    services = [hook.client_config.service for each in hooks for hook in each.webhooks]
    return next((each.namespace for each in services if each is not None), "cardwise-system")


def _endpoints(facts: Facts, namespace: str, service: str) -> tuple[int, int]:
    """Ready endpoints, and all. What is absent counts as ready, as the API says of EndpointConditions."""
    found = [
        endpoint
        for each in facts.capture.of(EndpointSlice)
        if each.metadata.namespace == namespace and each.metadata.labels.get(LABEL_SERVICE_NAME) == service
        for endpoint in each.endpoints or ()
    ]
    return sum(endpoint.conditions.ready is not False for endpoint in found), len(found)


def _refusals(facts: Facts) -> list[str]:
    """What the API server said to who wanted to create pods."""
    told = [event.message for event in facts.capture.of(Event) if UNREACHED in event.message]
    return [f"{len(told)} events such as: {told[0]}"] if told else []


CHECK = Check("CW101", "The admission webhook cannot be reached", find, frozenset({"CW206"}))
