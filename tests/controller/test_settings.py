"""The controller's settings: read whole, or refused with the key that is wrong and what to write."""

from __future__ import annotations

import pytest

from cardwise.controller.settings import Settings, prometheus_of, read_settings
from cardwise.errors import InputError


def read(tmp_path, text):
    path = tmp_path / "controller.toml"
    path.write_text(text)
    return read_settings(path)


def test_without_a_file_all_is_the_default():
    assert read_settings(None) == Settings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[scaling]\nenable = true", "scaling.enable: is no key; write enabled"),
        ('namespace = "A"', "namespace: 'A' is no name"),
        ('host = ""', "host: '' is no address"),
        ('[prometheus]\nurl = "prometheus:9090"', "prometheus.url: 'prometheus:9090' is no address of a Prometheus"),
        ('[prometheus]\ntoken-file = "/x"', "prometheus.token-file: needs a url"),
        ("[preemption]\ngrace-s = 0", "preemption.grace-s: is 0; write a whole number from 1 to 600"),
        ("[rescue]\nat-once = -1", "rescue"),
        ('[policy]\nbest-effort = "x"', "policy: no policy is called 'x'"),
        ('[policy]\nbatch = "dense"', "policy: policy.batch: no such class"),
        ("port = 99999", "port: is 99999"),
    ],
)
def test_what_is_wrong_is_told_by_its_key(tmp_path, text, said):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert f"controller.toml: {said}" in str(caught.value)


async def test_without_an_address_there_is_no_prometheus(tmp_path):
    assert prometheus_of(Settings()) is None
    made = prometheus_of(read(tmp_path, '[prometheus]\nurl = "https://thanos.example/api/"'))
    assert made is not None
    await made.close()
