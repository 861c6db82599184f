"""Labels the pod of the replica that binds, so that the extender's Service leads to it alone.

Runs beside the scheduler, asks it once a second whether it leads, and writes the answer on their pod. The one that
leads also takes the label off any other pod: one on a dead node cannot do it itself. Refuses to end on an error: a
label that could not be written is written a second later.
"""
# ruff: noqa: INP001 - a script in a ConfigMap, no package

import http.client
import json
import os
import signal
import ssl
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import quote

ACCOUNT = Path(os.environ.get("CARDWISE_ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
PORT = int(os.environ.get("CARDWISE_EXTENDER_PORT", "10260"))
LABEL = "cardwise.dev/leads"
PERIOD_S, TIMEOUT_S, SWEEP_S = 1.0, 2.0, 10.0


def leads() -> bool:
    """Whether the scheduler next door would bind now. Its certificate is for the Service, and this is loopback."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def api(method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - it is JSON
    """One request to the API server as our account. The token is read anew: the kubelet renews it."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",
        "Content-Type": "application/merge-patch+json",
    }
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status >= http.HTTPStatus.BAD_REQUEST:
        raise OSError(f"{method} {path}: {response.status}: {content[:200].decode(errors='replace')}")
    return json.loads(content)


def put(pods: str, name: str, value: str | None) -> None:
    """Set the label of a pod, or take it off."""
    api("PATCH", f"{pods}/{name}", {"metadata": {"labels": {LABEL: value}}})
    print(json.dumps({"event": "label written", "pod": name, "leads": value == "true"}), file=sys.stderr, flush=True)  # noqa: T201


def sweep(pods: str, own: str) -> None:
    """Take the label off every pod but ours."""
    for pod in api("GET", f"{pods}?labelSelector={quote(f'{LABEL}=true')}")["items"]:
        if pod["metadata"]["name"] != own:
            put(pods, pod["metadata"]["name"], None)


def stop(_number: int, _frame: FrameType | None) -> None:
    """The pod is ending, and with that no longer behind the Service."""
    sys.exit(0)


def main() -> None:
    """Run until told to stop."""
    signal.signal(signal.SIGTERM, stop)
    own = os.environ["POD_NAME"]
    pods = f"/api/v1/namespaces/{os.environ['POD_NAMESPACE']}/pods"
    written: bool | None = None
    swept_s = float("-inf")
    while True:
        now = leads()
        try:
            if now != written:
                put(pods, own, "true" if now else None)
                written = now
                swept_s = float("-inf")
            if now and time.monotonic() - swept_s >= SWEEP_S:
                sweep(pods, own)
                swept_s = time.monotonic()
        except (OSError, http.client.HTTPException, ValueError) as error:
            written = None
            print(json.dumps({"event": "not labelled", "why": str(error)}), file=sys.stderr, flush=True)  # noqa: T201
        time.sleep(PERIOD_S)


if __name__ == "__main__":
    main()
