"""CW101: the admission webhook has nobody behind it, so pods with an ask of ours are refused at creation (case C45)."""

from __future__ import annotations

from collections.abc import Iterable

from cardwise.adapters.kube_objects import EndpointSlice
from cardwise.adapters.symptoms import Event, WebhookConfiguration
from cardwise.adapters.wire import LABEL_SERVICE_NAME
from cardwise.doctor.facts import Facts
from cardwise.doctor.findings import CERTAIN, EVERYWHERE, Check, Finding

OURS = "cardwise"


def find(facts: Facts) -> Iterable[Finding]:
    """One finding for each Service of our webhook without a ready endpoint, and for a configuration without trust."""
    hooks = [each for each in facts.capture.of(WebhookConfiguration) if each.metadata.name == OURS]
    services = {
        (service.namespace, service.name)
        for each in hooks
        for hook in each.webhooks
        if (service := hook.client_config.service) is not None
    }
    for namespace, name in sorted(services) if facts.saw("EndpointSlice") else ():
        ready, known = _endpoints(facts, namespace, name)
        if not ready:
            yield _finding(
                f"nobody answers at Service {namespace}/{name}: {known} endpoints, none of them ready",
                f"see why the scheduler's pods are not ready: kubectl get pods -n {namespace} -l "
                "app.kubernetes.io/component=scheduler",
                [f"MutatingWebhookConfiguration {OURS} asks {namespace}/{name}", *_refusals(facts)],
            )
    for each in hooks:
        blind = sorted(hook.name for hook in each.webhooks if not hook.client_config.ca_bundle)
        if blind:
            yield _finding(
                "the API server does not know whom to trust there: caBundle is empty",
                "run helm upgrade again; with cert-manager see that its cainjector runs",
                [f"MutatingWebhookConfiguration {OURS}: no caBundle in {', '.join(blind)}", *_refusals(facts)],
            )


def _finding(cause: str, action: str, evidence: list[str]) -> Finding:
    told = f"the admission webhook cannot be asked: {cause}"
    return Finding("CW101", "cluster", frozenset({EVERYWHERE}), told, tuple(evidence), action, CERTAIN)


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
    told = [event.message for event in facts.capture.of(Event) if "failed calling webhook" in event.message]
    return [f"{len(told)} events such as: {told[0]}"] if told else []


CHECK = Check("CW101", "The admission webhook cannot be reached", find, frozenset({"CW206"}))
