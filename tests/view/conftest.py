"""What the viewer's stories share: runs by the scripted engine, and a browser's way of asking without a browser."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localjudge.view.runs import Runs
from localjudge.view.server import Server
from localjudge.view.site import Site
from tests.browser import browser, tab
from tests.run.conftest import Job, pair_rows, truth_rows, write_rows

__all__ = ["Job", "browser", "pair_rows", "tab", "truth_rows", "write_rows"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALJUDGE_CACHE", str(tmp_path / "cache"))


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Browser:
    """Sends what a browser on the viewer's own page would; whatever is given instead is sent as it is."""

    port: int
    token: str
    cookie: str = ""
    key: str = field(default="", init=False)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str | None) -> Reply:
        """headers: as `Sec_Fetch_Site`; None leaves one out."""
        sent: dict[str, str | None] = {"Host": self.host, "Cookie": self.cookie or None}
        data = None
        if method == "POST":
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent |= {"Content-Type": "application/json", "Origin": f"http://{self.host}"}
            sent |= {"Content-Length": str(len(data))}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.endheaders(data)
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str | None) -> Reply:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str | None) -> Reply:
        return self.ask("POST", path, body, **headers)

    def enter(self) -> Browser:
        reply = self.get(f"/?token={self.token}")
        assert reply.status == 200
        self.cookie = reply.headers["set-cookie"].partition(";")[0]
        return self

    # Labelling, of the run whose key is `key`

    def next(self, annotator: str = "ann", pick: str = "random") -> Any:
        return self.get(f"/api/{self.key}/label/next?annotator={annotator}&pick={pick}").json()

    def save(self, record_id: str, annotator: str = "ann", picked: str = "random", **answers: Any) -> Reply:
        told = {"id": record_id, "annotator": annotator, "picked": picked, "answers": answers}
        return self.post(f"/api/{self.key}/label/save", told)


Opened = Callable[..., Browser]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """A viewer on some folders, and a browser that has shown its token; it looks at the first run."""
    running: list[tuple[Server, Runs]] = []

    def opened(*folders: Path, **options: Any) -> Browser:
        runs = Runs(folders)
        server = Server(0, Site(runs, **options))
        running.append((server, runs))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        browser = Browser(server.server_port, server.door.token).enter()
        browser.key = runs.all()[0].key
        return browser

    yield opened
    for server, runs in running:
        server.shutdown()
        server.server_close()
        runs.close()


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
