"""Debian's Chromium for the tests of pages, one a module, and a tab in it that counts what it asks for.

Import `browser` and `tab` into a folder's conftest to have them as fixtures. While it is open, Playwright has an
event loop running in this thread: what needs one of its own, as a run does, is done with `apart`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


def apart(do: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Call it in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(do, *arguments, **options).result()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Skipped where Playwright's client or the browser is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no Chromium here: apt-get install chromium (scripts/setup --dev does)")
    with playwright.sync_playwright() as driver:
        # As root, as in most containers, Chromium's own sandbox does not start.
        running = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@dataclass
class Tab:
    """A page, with what went wrong in it and what it asked the network for."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, file: Path, at: str = "") -> Any:
        self.page.goto("about:blank")
        self.page.goto(file.resolve().as_uri() + at)
        self.page.wait_for_selector("html[data-ready]")
        return self.page


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """No test may leave an error in the console, or have asked anything of anybody but this machine."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page = context.new_page()
    page.set_default_timeout(30_000)
    it = Tab(page)
    page.on("pageerror", lambda error: it.errors.append(str(error)))
    page.on("console", lambda said: it.errors.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: (it.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: it.requests.append(request.url))
    yield it
    context.close()
    assert not it.errors
    local = ("file:", "data:", "blob:", "about:", "http://127.0.0.1:")
    assert [url for url in it.requests if not url.startswith(local)] == []
