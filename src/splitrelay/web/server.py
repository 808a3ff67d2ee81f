"""The web server of the page: files, views as JSON, and a stream of events.

Rules
    - The server listens on 127.0.0.1. The first part of every path is a secret token that is made at each start.
    - A request whose Host header is not this server is refused: a page of another site could otherwise reach it by a
      name that it controls (DNS rebinding).
    - Every answer has a content security policy that allows only files of this server. There are no cookies.
    - Requests only read. No request makes the server write a file or contact another host, except that the view
      Federation asks the server of the deployed run that was named on the command line.
    - A stream of events begins with the event `start`, after which a page loads everything that it shows. Later events
      have the runs with newer rows. Each event has the number of the newest row as its id. A browser that connects
      again sends the last id, and gets only the runs with rows after it.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from splitrelay.errors import SplitrelayError
from splitrelay.table import make_finite
from splitrelay.web.run_list import describe_changes
from splitrelay.web.source import ChangeLog, PageSource

# View: module and function. A module is imported when its view is first asked for, because some of them need torch.
VIEWS = {
    "runs": "run_list:list_runs",
    "curves": "run_list:get_curves",
    "compare": "run_list:compare_lines",
    "run": "run_details:get_run",
    "visits": "run_details:get_visits",
    "bounds": "explorers:get_bounds",
    "partition": "explorers:get_partition",
    "federation": "source:get_status",
}
STATIC = files("splitrelay.web").joinpath("static")
INDEX = STATIC.joinpath("index.html").read_text(encoding="utf-8")
STYLES, SCRIPTS = (re.findall(f'{kind}="static/([^"]+)"', INDEX) for kind in ("href", "src"))
TYPES = {"css": "text/css", "js": "text/javascript", "html": "text/html"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
REFUSED = "The address of this page has a secret token. Open the address that `splitrelay page` has printed.\n"


@dataclass(frozen=True)
class StreamLimits:
    """Limits of event streams: the seconds between two looks at the folder, and the number of streams."""

    pause: float = 1.0
    heartbeat: float = 15.0
    streams: int = 20


class PageServer(ThreadingHTTPServer):
    """The server of one page."""

    daemon_threads = True

    def __init__(
        self, source: PageSource, port: int = 0, token: str | None = None, limits: StreamLimits | None = None
    ) -> None:
        self.source, self.log, self.limits = source, ChangeLog(source), limits or StreamLimits()
        self.token = token or secrets.token_urlsafe(24)
        self.ending = threading.Event()
        self.streams = threading.BoundedSemaphore(self.limits.streams)
        super().__init__(("127.0.0.1", port), PageHandler)
        self.hosts = (
            f"127.0.0.1:{self.server_port}",
            f"localhost:{self.server_port}",
        )  # accepted Host headers
        self.address = f"http://{self.hosts[0]}/{self.token}/"  # to open in a browser

    def shutdown(self) -> None:
        """End the event streams, then the server."""
        self.ending.set()
        super().shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close a connection early; there is nothing to do about it."""


class PageHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "splitrelay", ""
    timeout = 60
    server: PageServer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses have the token in them."""

    def do_GET(self) -> None:
        """Answer a request."""
        if self.headers.get("Host") not in self.server.hosts:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"This server has another name.\n", "text/plain")
            return
        address = urlsplit(self.path)
        token, _, rest = address.path.removeprefix("/").partition("/")
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, REFUSED.encode(), "text/plain")
            return
        if rest == "":
            self._send(HTTPStatus.OK, INDEX.encode(), "text/html")
        elif rest == "events":
            self._stream()
        elif rest.startswith("api/") and rest[4:] in VIEWS:
            status, content = answer_view(rest[4:], self.server.source, dict(parse_qsl(address.query)))
            self._send(status, to_json(content).encode(), "application/json")
        elif rest.removeprefix("static/") in (*STYLES, *SCRIPTS):
            name = rest.removeprefix("static/")
            self._send(HTTPStatus.OK, read_static(name).encode(), TYPES[name.rpartition(".")[2]])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"There is nothing here.\n", "text/plain")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self._send_head(status, kind, {"Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", **more}.items():
            self.send_header(name, value)
        self.end_headers()

    def _stream(self) -> None:
        """Send changed runs until the browser leaves."""
        if not self.server.streams.acquire(blocking=False):
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"Too many open pages.\n", "text/plain")
            return
        try:
            self.close_connection = True
            self._send_head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
            self._send_events(self.headers.get("Last-Event-ID", ""))
        except (ConnectionError, TimeoutError):
            pass  # the page was closed
        finally:
            self.server.streams.release()

    def _send_events(self, seen: str) -> None:
        """Send what changes after the row with the number `seen`; first `start` if this server has not sent it."""
        limits, log, beat = self.server.limits, self.server.log, time.monotonic()
        number = log.read()
        if seen.isascii() and seen.isdecimal() and len(seen) < 16 and int(seen) <= number:
            number = int(seen)
        else:
            self._send_event("start", {}, number)
        while True:
            now = log.read()
            if now > number:
                self._send_event("runs", describe_changes(log, number), now)
                number, beat = now, time.monotonic()
            elif time.monotonic() - beat > limits.heartbeat:
                beat = time.monotonic()
                self.wfile.write(b": still here\n\n")
            if self.server.ending.wait(limits.pause):
                return

    def _send_event(self, name: str, content: dict[str, Any], number: int) -> None:
        self.wfile.write(f"id: {number}\nevent: {name}\ndata: {to_json(content)}\n\n".encode())


def answer_view(name: str, source: PageSource, query: dict[str, str]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return the content of a view, or the fields of the error that it raises."""
    module, _, function = VIEWS[name].partition(":")
    try:
        return HTTPStatus.OK, getattr(import_module(f"splitrelay.web.{module}"), function)(source, query)
    except SplitrelayError as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error), "what": error.what, "hint": error.hint}
    except ImportError as error:
        what, hint = "this view needs a package that is not installed", 'Install it: pip install "splitrelay[deploy]"'
        return HTTPStatus.NOT_IMPLEMENTED, {"error": f"{what}: {error.name}", "what": what, "hint": hint}


def to_json(content: Any) -> str:
    """Return JSON that may also stand in a script element: no `<` in it can end the element."""
    text = json.dumps(make_finite(content), separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def read_static(name: str) -> str:
    """Return a file of the page."""
    return STATIC.joinpath(*name.split("/")).read_text(encoding="utf-8")
