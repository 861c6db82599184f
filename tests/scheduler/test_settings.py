"""The scheduler's settings: read whole, or refused with the key that is wrong."""

from __future__ import annotations

import pytest

from cardwise.errors import InputError
from cardwise.scheduler.settings import Settings, read_settings


@pytest.fixture
def read(tmp_path):
    def _read(content):
        path = tmp_path / "scheduler.toml"
        path.write_text(content)
        return read_settings(path)

    return _read


def test_without_a_file_the_defaults_hold():
    assert read_settings(None) == Settings()


def test_what_the_file_says_is_taken(read):
    assert read('namespace = "ns"\nport = 1\n[policy]\nbest-effort = "fgd"\n') == Settings(
        namespace="ns", port=1, policy={"best-effort": "fgd"}
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("port", "is not TOML: ", id="no TOML"),
        pytest.param(f"port = {'[' * 3000}\n", "is nested too deep; give the scheduler's settings", id="nested"),
        pytest.param(f"port = {'9' * 5000}\n", "is not TOML: ", id="5000 digits"),
        pytest.param(f"port = 0x{'9' * 5000}\n", "write a whole number from 0 to 65535", id="5000 hexadecimal digits"),
        pytest.param("port = 65536\n", "write a whole number from 0 to 65535", id="port"),
        pytest.param(
            "webhook-port = -1\n", "webhook-port: is -1; write a whole number from 0 to 65535", id="port below 0"
        ),
        pytest.param("seed = -1\n", "seed: is -1; write a whole number from 0 to 2147483647", id="seed"),
        pytest.param("prot = 1\n", "prot: is no key; write port", id="typo"),
        pytest.param(f"policy{'.a' * 5000} = 1\n", "policy", id="tables in tables"),
        pytest.param("webhook-port = 1\n", "webhook-port: the webhook needs tls-cert-file and", id="no certificate"),
        pytest.param("port = 99999\n", "write a whole number from 0 to 65535", id="port 99999"),
        pytest.param("port = -5\n", "port: is -5; write a whole number from 0 to 65535", id="port -5"),
        pytest.param("port = 2026-01-01\n", "port: is '2026-01-01'; write a whole number from 0 to 65535", id="a date"),
        pytest.param('host = "a\\u0000b"\n', "host: 'a\\x00b' holds characters that cannot", id="host with NUL"),
        pytest.param(f'host = "{"a" * 64}.x"\n', "host: 'aaaa", id="host with a long label"),
        pytest.param('host = "a..b"\n', "host: 'a..b' is no address to listen on; write 0.0.0.0", id="empty label"),
        pytest.param('host = ""\n', "host: '' is no address to listen on; write 0.0.0.0", id="no host"),
        pytest.param(
            'tls-cert-file = "/a\\u0000b"\n', "tls-cert-file: '/a\\x00b' holds characters", id="file with NUL"
        ),
        pytest.param(
            'policy = {best-effort = "a\\u0000.toml"}\n', "policy.best-effort: 'a\\x00.toml'", id="policy NUL"
        ),
        pytest.param('namespace = "a/../b"\n', "namespace: 'a/../b' is no name; write lower-case", id="namespace"),
        pytest.param(
            'engine-policy = "ask"\n', "engine-policy: 'ask' is no policy; write rewrite, add, deny", id="engine policy"
        ),
        pytest.param('lease = ""\n', "lease: '' is no name; write lower-case", id="no lease"),
        pytest.param('client-ca-file = "ca"\n', "client-ca-file: needs tls-cert-file and", id="authority alone"),
    ],
)
def test_settings_that_cannot_be_meant_name_the_key(read, content, message):
    with pytest.raises(InputError) as caught:
        read(content)
    assert message in str(caught.value)


@pytest.mark.parametrize("host", ["::", "127.0.0.1", "localhost", "node-1.example.com."])
def test_a_host_is_an_address_or_a_name(read, host):
    assert read(f'host = "{host}"\n').host == host
