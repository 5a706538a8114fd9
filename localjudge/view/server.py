"""The viewer's HTTP server: who may ask, what may be sent, and nothing of what is shown (`site`).

It listens on this machine's loopback alone. That is no wall by itself: any page in the same browser can send
requests to it, and a name that an attacker owns can be made to resolve to it. So

- the address with a random token is told on the terminal alone; it is changed for a cookie that no script reads and
  no other site's request carries;
- Host must be this machine's own name (else a rebound name would be same-origin with its attacker);
- Origin, and what the browser says of the fetch, must be this very server (to a cookie other ports are the same);
- what is sent must be JSON, of a bounded size, and nothing is allowed to other origins;
- a page may load what this server has, run no script of its own text, and be framed by nobody.

No path of a file system is ever made of what is asked: names are looked up in tables.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hmac
import json
import secrets
import socket
import socketserver
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from localjudge.errors import LocalJudgeError

HERE = "127.0.0.1"
MOST_SENT = 64 * 1024
"""Bytes of a request's body."""

_WAIT = 60.0
_NAMES = {"127.0.0.1", "localhost", "[::1]"}
_COMPRESSED_FROM = 1024

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class NotFound(LocalJudgeError):
    """There is nothing of that name."""


@dataclass(frozen=True)
class Asked:
    """A request that may be answered. seen: what this browser was shown so far, for the site to keep."""

    method: str
    path: str
    query: Mapping[str, list[str]]
    body: Any
    seen: set[Any]

    def one(self, name: str) -> str:
        """A parameter of the query. Raises NotFound."""
        values = self.query.get(name, [])
        if len(values) != 1:
            raise NotFound(f"'{name}' is wanted once in the address")
        return values[0]


@dataclass(frozen=True)
class Answer:
    """csp: of a page that brings its own policy."""

    body: bytes
    type: str = "application/json"
    csp: str = CSP
    status: HTTPStatus = HTTPStatus.OK

    @staticmethod
    def json(value: Any, status: HTTPStatus = HTTPStatus.OK) -> Answer:
        return Answer(json.dumps(value, ensure_ascii=False, allow_nan=False).encode(), status=status)


Respond = Callable[[Asked], Answer]
"""Raises NotFound and other LocalJudgeErrors."""


@dataclass
class _Door:
    """Who may come in. Browsers that showed the token have a session each."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    _sessions: dict[str, set[Any]] = field(default_factory=dict)
    _busy: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> str:
        with self._busy:
            session = secrets.token_urlsafe(32)
            self._sessions[session] = set()
            return session

    def seen(self, session: str) -> set[Any] | None:
        """What the browser of this session was shown; None of no session."""
        for known, seen in list(self._sessions.items()):
            if hmac.compare_digest(known.encode(), session.encode()):
                return seen
        return None


class Server(ThreadingHTTPServer):
    """Serves `respond` on this machine's loopback until closed."""

    daemon_threads = True
    address_family = socket.AF_INET

    def __init__(self, port: int, respond: Respond) -> None:
        """port: 0 for any that is free. Raises LocalJudgeError when nothing can listen there."""
        self.respond = respond
        self.door = _Door()
        try:
            super().__init__((HERE, port), _Handler)
        except OSError as error:
            where = f"{HERE}:{port}"
            if error.errno == errno.EADDRINUSE:
                fix = f"give another, as --port {port + 1}, or --port 0 for any that is free"
                raise LocalJudgeError(f"port {port} is in use", where=HERE, fix=fix) from None
            if error.errno == errno.EACCES:
                raise LocalJudgeError(
                    f"port {port} is not for everyone", where=HERE, fix="give one above 1023"
                ) from None
            raise LocalJudgeError(f"nothing can listen there: {error.strerror}", where=where) from None

    def server_bind(self) -> None:
        # Not HTTPServer's: it asks the resolver for this machine's full name.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HERE, self.server_address[1]

    @property
    def url(self) -> str:
        """The address to open, token included."""
        return f"http://{HERE}:{self.server_port}/?token={self.door.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            traceback.print_exc()


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        self.status, self.why = status, why
        super().__init__(why)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    timeout = _WAIT

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=50)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST, "the address cannot be read")
            return
        try:
            self._check_host()
            if method == "GET" and parts.path == "/" and "token" in query:
                self._let_in(query["token"][0])
                return
            self._check_origin(method)
            seen = self._session()
            if seen is None:
                why = "open the address that `localjudge view` printed: it holds the token"
                raise _Refused(HTTPStatus.FORBIDDEN, why)
            body = self._body() if method == "POST" else None
        except _Refused as refused:
            self.send_error(refused.status, refused.why)
            return
        self._send(self._respond(Asked(method, parts.path, query, body, seen)))

    def _respond(self, asked: Asked) -> Answer:
        try:
            return self.server.respond(asked)
        except NotFound as error:
            return _told(error, HTTPStatus.NOT_FOUND)
        except LocalJudgeError as error:
            return _told(error, HTTPStatus.CONFLICT)
        except Exception as error:
            traceback.print_exc()
            told = LocalJudgeError(f"the viewer failed: {type(error).__name__}", fix="its terminal tells more")
            return _told(told, HTTPStatus.INTERNAL_SERVER_ERROR)

    # Who may ask

    def _check_host(self) -> None:
        hosts = self.headers.get_all("Host") or []
        name = hosts[0].rpartition(":")[0] or hosts[0] if len(hosts) == 1 else ""
        name = hosts[0] if hosts and hosts[0].endswith("]") else name
        if name.lower() not in _NAMES:
            raise _Refused(HTTPStatus.MISDIRECTED_REQUEST, "this server is for this machine alone: open 127.0.0.1")

    def _check_origin(self, method: str) -> None:
        own = f"http://{self.headers['Host']}"
        origin = self.headers.get("Origin")
        if (origin is None and method != "GET") or (origin is not None and origin != own):
            raise _Refused(HTTPStatus.FORBIDDEN, "another page may not ask this server")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise _Refused(HTTPStatus.FORBIDDEN, "another page may not ask this server")

    @property
    def _cookie(self) -> str:
        """Cookies know no ports: each server's has a name of its own."""
        return f"localjudge_{self.server.server_port}"

    def _session(self) -> set[Any] | None:
        """What this browser was shown so far; None where it has not shown the token."""
        for header in self.headers.get_all("Cookie") or []:
            for part in header.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self._cookie and (seen := self.server.door.seen(value)) is not None:
                    return seen
        return None

    def _let_in(self, token: str) -> None:
        if not hmac.compare_digest(token.encode(), self.server.door.token.encode()):
            self.send_error(HTTPStatus.FORBIDDEN, "this is not the token that `localjudge view` printed last")
            return
        cookie = {}
        if self._session() is None:
            session = self.server.door.open()
            cookie = {"Set-Cookie": f"{self._cookie}={session}; Path=/; HttpOnly; SameSite=Strict"}
        # A page that goes on by itself, since a redirect is still the other site's, if a link there led here.
        page = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">localjudge</a>'
        self._send(Answer(page.encode(), "text/html"), cookie)

    # What is sent

    def _body(self) -> Any:
        """Raises _Refused."""
        if self.headers.get("Content-Type", "").partition(";")[0].strip() != "application/json":
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only JSON is taken")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "how long is it?")
        if int(length[:12]) > MOST_SENT:
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MOST_SENT} bytes are taken")
        try:
            return json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _Refused(HTTPStatus.BAD_REQUEST, "this is not JSON") from None

    def _send(self, answer: Answer, more: Mapping[str, str] | None = None) -> None:
        body = answer.body
        headers = {"Content-Type": f"{answer.type}; charset=utf-8", "Content-Security-Policy": answer.csp}
        asked = getattr(self, "headers", None)  # not there when not even the request's line could be read
        if len(body) > _COMPRESSED_FROM and asked and "gzip" in asked.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        headers |= {**_HEADERS, **(more or {}), "Content-Length": str(len(body))}
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """In plain text; the connection is closed, since what was sent may not have been read."""
        self.close_connection = True
        text = message or HTTPStatus(code).phrase
        self._send(Answer(f"{text}\n".encode(), "text/plain", status=HTTPStatus(code)), {"Connection": "close"})

    def version_string(self) -> str:
        return "localjudge"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a terminal is no log of who looked at what."""


def _told(error: LocalJudgeError, status: HTTPStatus) -> Answer:
    return Answer.json({"error": error.what, "where": error.where, "fix": error.fix}, status)
