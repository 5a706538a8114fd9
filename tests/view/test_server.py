"""The viewer is asked by its own page alone: by no other page, no other name for this machine, and nobody without
the token; and what is asked for is looked up, never opened."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from localjudge.errors import LocalJudgeError
from localjudge.view.server import HERE, MOST_SENT, Answer, Asked, NotFound, Server
from tests.view.conftest import Browser


def respond(asked: Asked) -> Answer:
    match asked.path:
        case "/" | "/api/echo":
            asked.seen.add(asked.path)
            return Answer.json({"body": asked.body, "seen": sorted(asked.seen)})
        case "/long":
            return Answer(b"x" * 100_000, "text/plain")
        case "/fails":
            raise ZeroDivisionError("something private")
        case "/refuses":
            raise LocalJudgeError("it is so", where="here", fix="do that")
    raise NotFound("there is nothing here")


@pytest.fixture
def browser() -> Browser:
    server = Server(0, respond)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield Browser(server.server_port, server.door.token)  # type: ignore[misc]
    server.shutdown()
    server.server_close()


def test_the_token_lets_a_browser_in_and_the_cookie_keeps_it_in(browser: Browser) -> None:
    for path in ("/", "/api/echo", "/?token=", "/?token=wrong", "/?token=%ff", "/?other=1"):
        assert browser.get(path).status == 403
    entered = browser.get(f"/?token={browser.token}")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.token not in cookie
    assert browser.get("/", Cookie="a=b; " + cookie.partition(";")[0]).status == 200
    name, _, value = cookie.partition(";")[0].partition("=")
    for wrong in (f"{name}={value[:-1]}", f"{name}={browser.token}", f"{name}=", f"other={value}", f"{name}=é"):
        assert browser.get("/", Cookie=wrong).status == 403
    assert str(browser.port) in name, "cookies know no ports: another viewer's must not take its place"


def test_two_browsers_have_each_their_own_session(browser: Browser) -> None:
    one, other = Browser(browser.port, browser.token).enter(), Browser(browser.port, browser.token).enter()
    one.get("/")
    assert one.get("/api/echo").json()["seen"] == ["/", "/api/echo"]
    assert other.get("/api/echo").json()["seen"] == ["/api/echo"]
    again = one.get(f"/?token={one.token}")  # the same browser, opening the address again, is known
    assert "set-cookie" not in again.headers
    assert one.get("/api/echo").json()["seen"] == ["/", "/api/echo"]


def test_no_other_name_for_this_machine(browser: Browser) -> None:
    """A page whose name was made to resolve to 127.0.0.1 is same-origin with us, but for the name."""
    browser.enter()
    for host in ("evil.example", f"evil.example:{browser.port}", "127.0.0.1.evil.example", "localhost.evil:80", ""):
        assert browser.get("/", Host=host).status == 421
        assert browser.get(f"/?token={browser.token}", Host=host).status == 421
    assert browser.get("/", Host=None).status in (400, 421)
    for host in (f"localhost:{browser.port}", "LOCALHOST:9", "127.0.0.1", f"[::1]:{browser.port}"):
        assert browser.get("/", Host=host).status == 200  # also through a tunnel, whose port is another


def test_no_other_page_reads_or_writes(browser: Browser) -> None:
    browser.enter()
    own = f"http://{browser.host}"
    for origin in ("http://evil.example", "null", "https://" + browser.host, "http://127.0.0.1:1", own + ".evil"):
        assert browser.get("/api/echo", Origin=origin).status == 403
        assert browser.post("/api/echo", {}, Origin=origin).status == 403
    assert browser.post("/api/echo", {}, Origin=None).status == 403
    for site in ("cross-site", "same-site"):  # another port is the same site, and its requests carry the cookie
        assert browser.get("/api/echo", Sec_Fetch_Site=site).status == 403
        assert browser.post("/api/echo", {}, Sec_Fetch_Site=site).status == 403
    assert browser.get("/api/echo", Sec_Fetch_Site="same-origin", Origin=own).status == 200
    assert browser.post("/api/echo", {"a": 1}, Sec_Fetch_Site="same-origin").json()["body"] == {"a": 1}
    # A link to the address with the token, from a chat in the browser, is a cross-site navigation that may enter.
    assert browser.get(f"/?token={browser.token}", Sec_Fetch_Site="cross-site").status == 200
    for reply in (browser.get("/"), browser.get("/nothing"), browser.get("/", Origin="null")):
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert "default-src 'none'" in reply.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cross-origin-resource-policy"] == "same-origin"
        assert reply.headers["cache-control"] == "no-store"


def test_what_is_sent_is_json_of_a_bounded_size(browser: Browser) -> None:
    browser.enter()
    form = b"id=1"
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None):
        assert browser.post("/api/echo", form, Content_Type=kind).status == 415
    for broken in (b"{", b"", b"\xff", b"[" * 50_000):
        assert browser.post("/api/echo", broken).status == 400
    assert browser.post("/api/echo", b"1" * (MOST_SENT + 1)).status == 413
    assert browser.post("/api/echo", b"", Content_Length="9" * 30).status == 413
    for length in ("-1", "x", "", None, "１"):
        said = length.encode("utf-8").decode("latin-1") if length else length
        assert browser.post("/api/echo", b"{}", Content_Length=said).status == 411
    assert browser.post("/api/echo", b"{}", Transfer_Encoding="chunked").status == 411
    assert browser.post("/api/echo", b"{}").status == 200


def test_what_goes_wrong_is_told_without_what_is_private(
    browser: Browser, capsys: pytest.CaptureFixture[str]
) -> None:
    browser.enter()
    assert browser.get("/nothing").json() == {"error": "there is nothing here", "where": None, "fix": None}
    refused = browser.get("/refuses")
    assert (refused.status, refused.json()) == (409, {"error": "it is so", "where": "here", "fix": "do that"})
    failed = browser.get("/fails")
    assert failed.status == 500
    assert "private" not in failed.text
    assert "ZeroDivisionError" in capsys.readouterr().err
    for path in ("/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/..%5c..", "/%00", "/a/../x"):
        assert browser.get(path).status == 404
    assert browser.ask("PUT", "/api/echo").status == 501
    assert browser.ask("OPTIONS", "/api/echo").status == 501


def test_what_is_no_request_at_all_does_no_harm(browser: Browser) -> None:
    for sent in (
        b"\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"x" * 70_000,
        b"\x16\x03\x01",
    ):
        with socket.create_connection((HERE, browser.port), timeout=5) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    assert browser.enter().get("/").status == 200


def test_long_answers_are_compressed_where_that_is_understood(browser: Browser) -> None:
    browser.enter()
    small = browser.get("/long", Accept_Encoding="gzip, br")
    assert small.headers["content-encoding"] == "gzip"
    assert len(small.body) < 1000
    assert len(browser.get("/long").body) == 100_000


def test_a_port_in_use_is_told_with_another(browser: Browser) -> None:
    with pytest.raises(LocalJudgeError) as caught:
        Server(browser.port, respond)
    assert str(caught.value) == (
        f"127.0.0.1: port {browser.port} is in use\n"
        f"  give another, as --port {browser.port + 1}, or --port 0 for any that is free"
    )


def test_only_this_machine_is_listened_to(browser: Browser, tmp_path: Path) -> None:
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", browser.port), timeout=2):
        pass
