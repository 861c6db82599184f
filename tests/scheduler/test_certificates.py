"""Certificates are renewed under a server that runs; handshakes on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import time
from datetime import UTC, datetime

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from cardwise.adapters.hollow import HollowCluster
from cardwise.adapters.listening import serve
from cardwise.errors import UserError
from cardwise.scheduler import certificates as module
from cardwise.scheduler.certificates import Certificates
from cardwise.scheduler.main import Scheduler
from cardwise.scheduler.settings import Settings
from tests.controlplane.certs import Authority


class Files:
    """Certificate, key and client authority as a server is told of them; all of one authority, "old" at first."""

    def __init__(self, folder):
        self.folder = folder
        self.old, self.new = Authority(folder / "old"), Authority(folder / "new")
        self.cert, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "ca.crt"
        self.issue(self.old)
        self.trust(self.old)

    def issue(self, authority):
        pair = authority.server("cardwise")
        shutil.copy(pair.cert, self.cert)
        shutil.copy(pair.key, self.key)

    def trust(self, authority):
        shutil.copy(authority.ca, self.ca)

    def certificates(self):
        return Certificates(str(self.cert), str(self.key), str(self.ca))


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@contextlib.asynccontextmanager
async def listening(certificates):
    """A server that answers who asks; its port."""
    app = web.Application()
    app.add_routes([web.get("/", _who)])
    runner, port = await serve(app, "127.0.0.1", 0, certificates.context)
    try:
        yield port
    finally:
        await runner.cleanup()


async def _who(request):
    return web.Response(text="known" if request.transport.get_extra_info("peercert") else "unknown")


async def answer(port, trusted, client=None, host="localhost", path="/"):
    """What the server says to a client that trusts one authority and shows a certificate, or none."""
    context = ssl.create_default_context(cafile=trusted.ca)
    if client is not None:
        context.load_cert_chain(client.cert, client.key)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return (await reader.read()).decode().rpartition("\r\n")[2]
    except ConnectionError:
        return ""
    finally:
        writer.close()
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["by name", "by address, which is never told"])
async def test_a_renewed_certificate_is_shown_without_a_restart(files, host):
    certificates = files.certificates()
    async with listening(certificates) as port:
        assert await answer(port, files.old, host=host) == "unknown"
        files.issue(files.new)
        certificates.renew()
        assert await answer(port, files.new, host=host) == "unknown"
        with pytest.raises(ssl.SSLCertVerificationError):
            await answer(port, files.old, host=host)


async def test_clients_of_a_renewed_authority_are_known_and_those_of_the_old_one_no_more(files):
    certificates = files.certificates()
    old, new = files.old.client("kube-scheduler"), files.new.client("kube-scheduler")
    async with listening(certificates) as port:
        assert await answer(port, files.old, old) == "known"
        files.trust(files.new)
        certificates.renew()
        assert await answer(port, files.old, new) == "known"
        assert await answer(port, files.old, old) == ""  # TLS 1.3 refuses a client after its part of the handshake


def _cut(file):
    file.write_text(file.read_text()[:100])


@pytest.mark.parametrize(
    "harm",
    [
        lambda files: _cut(files.cert),
        lambda files: _cut(files.key),
        lambda files: files.ca.write_text("no certificate"),
        lambda files: files.cert.unlink(),
        lambda files: shutil.copy(files.new.server("other").cert, files.cert),
    ],
    ids=["certificate cut", "key cut", "authority", "missing", "another key's"],
)
async def test_files_that_cannot_be_used_are_told_once_and_the_old_ones_stay(files, harm):
    certificates, client = files.certificates(), files.old.client("kube-scheduler")
    async with listening(certificates) as port:
        harm(files)
        with capture_logs() as told:
            certificates.renew()
            certificates.renew()
        assert [each["event"] for each in told] == ["renewed certificates cannot be used, the old ones stay"]
        assert await answer(port, files.old, client) == "known"


async def test_a_renewal_that_was_caught_half_written_is_taken_when_it_is_whole(files):
    certificates, pair = files.certificates(), files.new.server("cardwise")
    async with listening(certificates) as port:
        shutil.copy(pair.cert, files.cert)
        certificates.renew()
        shutil.copy(pair.key, files.key)
        certificates.renew()
        assert await answer(port, files.new) == "unknown"


async def test_files_that_did_not_change_are_not_read_again(files):
    certificates = files.certificates()
    with capture_logs() as told:
        certificates.renew()
    assert told == []


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda files: files.key.unlink(), r"^tls-key-file .*tls\.key: No such file.*; give a file that can be read$"),
        (
            lambda files: files.cert.unlink(),
            r"^tls-cert-file .*tls\.crt: No such file.*; give a file that can be read$",
        ),
        (lambda files: files.ca.unlink(), r"^client-ca-file .*ca\.crt: No such file.*; give a file that can be read$"),
        (lambda files: _cut(files.cert), r"^tls-cert-file .*tls\.crt: .*; give a PEM certificate and its key$"),
        (lambda files: _cut(files.key), r"^tls-cert-file .*tls\.crt: .*; give a PEM certificate and its key$"),
        (lambda files: files.ca.write_text("no"), r"^client-ca-file .*ca\.crt: .*; give PEM certificates of auth"),
        (lambda files: files.ca.write_text(""), r"^client-ca-file .*ca\.crt: .*; give PEM certificates of auth"),
    ],
    ids=["no key", "no certificate", "no authority", "certificate cut", "key cut", "authority", "authority empty"],
)
def test_files_that_cannot_be_used_at_the_start_are_refused_by_the_key_that_names_them(files, harm, told):
    harm(files)
    with pytest.raises(UserError, match=told):
        files.certificates()


def test_a_name_that_no_file_can_have_is_refused(files):
    with pytest.raises(UserError, match=r"^tls-cert-file /a\\x00b: embedded null byte; give a file that can be read$"):
        Certificates("/a\0b", str(files.key))


@pytest.mark.parametrize("door", [0, 1], ids=["extender", "webhook"])
async def test_the_scheduler_looks_at_its_files_as_it_runs(files, monkeypatch, door):
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    named = {"tls_cert_file": str(files.cert), "tls_key_file": str(files.key), "client_ca_file": str(files.ca)}
    with socket.create_server(("127.0.0.1", 0)) as free:
        webhook_port = free.getsockname()[1]
    settings = Settings(host="127.0.0.1", port=0, webhook_port=webhook_port, **named)
    async with Scheduler.build(HollowCluster(lambda: datetime.now(UTC)), settings, "a").running() as ports:
        assert await answer(ports[door], files.old, path="/healthz") == "ok\n"
        files.issue(files.new)
        deadline_s = time.monotonic() + 40
        while (told := await _answer_or_none(ports[door], files.new)) is None and time.monotonic() < deadline_s:
            await asyncio.sleep(0.01)
        assert told == "ok\n"


async def _answer_or_none(port, trusted):
    try:
        return await answer(port, trusted, path="/healthz")
    except ssl.SSLCertVerificationError:
        return None
