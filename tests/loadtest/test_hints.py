"""Ports that do not speak HTTP/1.1: the message says what stands there, and what to type."""

import contextlib
import socket
import ssl
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardwise.errors import UserError
from cardwise.loadtest import hints, run
from cardwise.loadtest.hints import hint_of, is_http2
from cardwise.loadtest.plan import Kind, Plan, Target, endpoint_of, split_url
from tests.controlplane.certs import Authority
from tests.loadtest.service import serving

SETTINGS = bytes.fromhex("00000604000000000000030000006400000408000000000000ffff0001")
"""What a server of gRPC says first: SETTINGS, and WINDOW_UPDATE."""


@contextlib.contextmanager
def port_that(talks):
    """A port that hands each connection to ``talks``."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=_talk, args=(connection,), daemon=True).start()

    def _talk(connection):
        with contextlib.suppress(OSError), connection:
            talks(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def speaks_http2(connection):
    connection.sendall(SETTINGS)
    connection.recv(1000)


def says_nothing(connection):
    while connection.recv(1000):
        pass


def speaks_ssh(connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    connection.recv(1000)


def first_request(scheme, port):
    target = Target(endpoint_of(split_url(f"{scheme}://127.0.0.1:{port}/")), "/", Kind.PLAIN, method="GET")
    return run.ask_once(target, Plan(timeout_s=0.2))


@pytest.mark.parametrize(
    ("talks", "said"),
    [
        (speaks_http2, "it speaks HTTP/2 only, as gRPC does"),
        (says_nothing, r"no answer in 0\.3 s; it takes connections and says nothing"),
        (speaks_ssh, "it does not speak HTTP/1.1: check the port"),
    ],
    ids=["http2", "silent", "ssh"],
)
def test_what_stands_there_is_told(monkeypatch, talks, said):
    if talks is says_nothing:  # who says something is waited for, however busy the machine
        monkeypatch.setattr(hints, "PATIENCE_S", 0.3)
        monkeypatch.setattr(run, "FIRST_S", 0.3)
    with port_that(talks) as port, pytest.raises(UserError, match=said):
        first_request("http", port)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_port_that_takes_no_connections_is_not_said_to_take_them(scheme):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert hint_of(endpoint_of(split_url(f"{scheme}://127.0.0.1:{port}/"))).startswith("it takes no connections: check")


def test_tls_spoken_to_in_plain_is_told(tmp_path):
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.server("service")
    context.load_cert_chain(pair.cert, pair.key)

    def speaks_tls(connection):
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.recv(1000)

    with port_that(speaks_tls) as port:
        with pytest.raises(UserError, match="it speaks TLS: write https://"):
            first_request("http", port)
        with pytest.raises(UserError, match="check its certificate"):
            first_request("https", port)


def test_plain_http_spoken_to_in_tls_is_told():
    with serving() as service, pytest.raises(UserError, match="it speaks no TLS: write http://"):
        first_request("https", service.port)


def test_a_server_of_http_1_1_that_does_not_answer_is_not_doubted():
    def answers_others(connection):
        if connection.recv(1000).startswith(b"PRI"):
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

    with port_that(answers_others) as port:
        told = hint_of(endpoint_of(split_url(f"http://127.0.0.1:{port}/")))
    assert told.startswith("it speaks HTTP/1.1, but does not answer this request")


@given(st.binary(max_size=64))
def test_nothing_that_begins_as_text_is_taken_for_http_2(rest):
    assert not is_http2(b"HTTP/1.1 " + rest)
    assert not is_http2(b"SSH-2.0-x" + rest)
    assert is_http2(SETTINGS[:9] + rest)
