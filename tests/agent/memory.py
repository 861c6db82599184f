"""Tenants of a fake card: real processes, whose memory on the card is a script. The card's total follows them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

from tests.agent.node_port import pod, share

CONTAINER = "c" * 64
TICK_S, MOST_TICK_S = 0.02, 0.1
"""Between two steps of what grows. A machine that stalls gives nobody time to look: nothing grows meanwhile."""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
PLAIN = "import time; print(1, flush=True); time.sleep(600)"


class Tenant:
    """A pod with one process on one card. per_s: MiB that it grows by each second, up to ``most_mib``.

    greedy: where less is left than it wants, it takes that and lives on, as an engine that caches does. pid: what the
    card tells in place of the process's number.
    """

    def __init__(self, node, body, mib, *, card=0, stubborn=False, pid=None):
        self.node, self.body, self.card, self.mib = node, body, card, mib
        self.per_s, self.most_mib = 0.0, 10**9
        self.greedy = False
        self.died_s = None
        command = [sys.executable, "-c", STUBBORN if stubborn else PLAIN]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.process.stdout.readline()  # it ignores signals from here on, if it does
        self.pid = pid or self.process.pid
        folder = node.folder / "proc" / str(self.pid)
        folder.mkdir(parents=True)
        (folder / "cgroup").write_text(f"0::/kubepods/pod{self.uid}/{CONTAINER}\n")

    @property
    def uid(self):
        return self.body["metadata"]["uid"]

    @property
    def name(self):
        return self.body["metadata"]["name"]

    @property
    def lives(self):
        return self.process.poll() is None

    @property
    def killed(self):
        return self.process.poll() == -signal.SIGKILL

    def end(self, what=signal.SIGKILL):
        self.process.send_signal(what)
        self.process.wait(10)

    def close(self):
        if self.lives:
            self.process.kill()
        self.process.wait(10)
        self.process.stdout.close()


class Tenants:
    """All tenants of a node, and what else the card holds. ``async with``: their memory moves meanwhile.

    ooms: tenants that wanted memory when the card had none left. peak_mib: the most that was used, by card.
    kubelet: evictions that the API server takes end the pod's process after its grace, as a kubelet does.
    """

    def __init__(self, node, *, kubelet=True):
        self.node, self.kubelet = node, kubelet
        self.all: list[Tenant] = []
        self.ooms: list[str] = []
        self.peak_mib: dict[int, int] = {}
        self._task = None
        self._ended: set[str] = set()

    async def __aenter__(self):
        self._write()
        self._task = asyncio.create_task(self._live())
        return self

    async def __aexit__(self, *_exc):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for each in self.all:
            each.close()

    async def add(
        self, name, mib, *, card=0, best_effort=False, granted_mib=None, lent_mib=0, stubborn=False, pid=None, **more
    ):
        """A pod that runs and holds so much of a card."""
        granted = granted_mib or mib
        annotations = {"cardwise.dev/class": "best-effort"} if best_effort else {}
        shares = {"app": [share(self.node.uuid(card), granted, 0, lent_mib=lent_mib)]}
        body = self.node.bound(_marked(pod(name, shares, annotations=annotations), **more))
        await self.node.run(body)
        tenant = Tenant(self.node, body, mib, card=card, stubborn=stubborn, pid=pid)
        self.all.append(tenant)
        self._write()
        return tenant

    def used_mib(self, card=0):
        return int(sum(each.mib for each in self.all if each.card == card and each.lives))

    def _write(self):
        """The card as the driver shows it now, in one piece."""
        nvml = self.node.nvml
        nvml._lines = [line for line in nvml._lines if not line.startswith("process")]
        for each in self.all:
            if each.lives:
                nvml._lines.append(f"process {each.card} {each.pid} {int(each.mib) << 20} C -1 -1")
        for card in range(len(nvml.uuids)):
            nvml._cards[card]["used"] = self.used_mib(card) << 20
            self.peak_mib[card] = max(self.peak_mib.get(card, 0), self.used_mib(card))
        nvml.write()

    async def _live(self):
        loop = asyncio.get_running_loop()
        last_s = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now_s = loop.time()
            for each in self.all:
                self._grow(each, min(now_s - last_s, MOST_TICK_S))
            last_s = now_s
            if self.kubelet:
                self._end_evicted()
            self._write()

    def _grow(self, tenant, seconds):
        if not tenant.lives or not tenant.per_s:
            return
        wanted = min(tenant.mib + tenant.per_s * seconds, tenant.most_mib)
        card = next(c for c in self.node.agent.inventory.facts.cards if c.uuid == self.node.uuid(tenant.card))
        left = card.allocatable_mib - self.used_mib(tenant.card)
        if tenant.greedy:
            wanted = min(wanted, tenant.mib + left)
        if wanted - tenant.mib > left:  # CUDA out of memory: who asks fails
            self.ooms.append(tenant.name)
            tenant.end()
            return
        tenant.mib = wanted

    def _end_evicted(self):
        for name, _grace in self.node.port.evicted:
            for each in self.all:
                if f"default/{each.name}" == name and name not in self._ended:
                    self._ended.add(name)
                    each.process.terminate()


def _marked(body, *, service="", priority=None, made="2026-11-30T09:00:00Z"):
    body["metadata"]["creationTimestamp"] = made
    if service:
        body["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": service, "controller": True}]
    if priority is not None:
        body["spec"]["priority"] = priority
    return body
