"""nginx, as a static upstream and as a proxy: one worker, kept connections, no access log."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.serving.procs import HOST, Server, free_port, started

INSTALL = (
    "nginx is not installed: apt-get install nginx (Debian, Ubuntu), dnf install nginx (Fedora), brew install nginx"
)
_PLACES = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
{rest}
}}
"""
_STATIC = """
  server {{
    listen {host}:{port} backlog=8192;
    default_type application/json;
    location / {{ return 200 '{{"ok": true}}'; }}
  }}
"""
_PROXY = """
  upstream replica {{
    server {upstream};
    keepalive 256;
    keepalive_requests 100000000;
  }}
  server {{
    listen {host}:{port} backlog=8192;
    location / {{
      proxy_pass http://replica;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
    }}
  }}
"""


def program() -> str | None:
    """Where it is; it is seldom in a user's PATH."""
    return shutil.which("nginx", path=_PLACES)


@contextlib.contextmanager
def static(cores: Sequence[int] = ()) -> Iterator[Server]:
    """A server whose every answer is 200 and a few bytes."""
    port = free_port()
    with _nginx("static", _STATIC.format(host=HOST, port=port), port, cores) as server:
        yield server


@contextlib.contextmanager
def proxy(upstream_url: str, cores: Sequence[int] = ()) -> Iterator[Server]:
    """A proxy before one upstream."""
    port = free_port()
    rest = _PROXY.format(host=HOST, port=port, upstream=urlsplit(upstream_url).netloc)
    with _nginx("proxy", rest, port, cores) as server:
        yield server


@contextlib.contextmanager
def _nginx(name: str, rest: str, port: int, cores: Sequence[int]) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="cw-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # its worker is another user if we are root
        config = Path(folder) / "nginx.conf"
        config.write_text(_CONFIG.format(folder=folder, rest=rest))
        command = [program() or "nginx", "-p", folder, "-e", "stderr", "-c", str(config)]
        with started(f"nginx-{name}", command, port=port, ready="/", cores=cores) as server:
            yield server
