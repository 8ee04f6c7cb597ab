"""One browser and one server for all browser tests; every test gets a fresh context (cookies, storage, tray).

The server is the real one, in a process of its own, on a free port with a data folder of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from tests.browser.pages import Stored, vllm_result

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
PATIENCE_MS = 15_000
"""How long an action or an expectation waits. Reached only by a test that fails, so it can allow for a slow machine."""

expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """`make test` says which Chromium; by hand, BYTEBOUND_CHROMIUM or the one on PATH."""
    path = os.environ.get("BYTEBOUND_CHROMIUM")
    if path is None:
        found = subprocess.run([sys.executable, ROOT / "tools" / "browser.py"], capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        path = found.stdout.strip()
    launched = playwright.chromium.launch(executable_path=path or None, args=list(ARGUMENTS))
    yield launched
    launched.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running `bytebound serve`."""
    folder = tmp_path_factory.mktemp("served")
    log = folder / "server.log"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BYTEBOUND_")}
    environ |= {
        "BYTEBOUND_PORT": "0",
        "BYTEBOUND_DATA_DIR": str(folder / "data"),
        "BYTEBOUND_ESTIMATES_PER_MINUTE": "0",
        "BYTEBOUND_UPLOADS_PER_MINUTE": "0",
        "BYTEBOUND_SHARE_LOOKUPS_PER_MINUTE": "0",
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main(['serve']))"],
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    reader = threading.Thread(target=process.stdout.read, daemon=True)
    try:
        # The socket listens before this line is printed, so whoever connects now waits and is served.
        line = process.stdout.readline()
        # Every request is a further line there: unread, they would fill the pipe and stop the server.
        reader.start()
        found = re.search(r"http://\S+", line)
        assert found is not None, f"the server ended with {process.poll()}: {line}\n{log.read_text()}"
        yield found[0]
        assert process.poll() is None, log.read_text()
    finally:
        process.terminate()
        process.wait(30)
        reader.join(30)
        process.stdout.close()
    assert "Traceback" not in log.read_text(), log.read_text()


@dataclass
class Watch:
    """What a browser complains about, and what it asks of anybody but the server."""

    base: str
    faults: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def attach(self, context: BrowserContext) -> None:
        context.add_init_script(
            "document.addEventListener('securitypolicyviolation', e =>"
            " console.error('policy violation: ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
        context.on("weberror", lambda error: self.faults.append(f"script error: {error.error}"))
        context.on(
            "console",
            lambda said: (
                self.faults.append(f"console {said.type}: {said.text}") if said.type in ("error", "warning") else None
            ),
        )
        context.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((self.base + "/", "data:", f"blob:{self.base}"))
                else self.faults.append(f"leaves the server: {request.url}")
            ),
        )

    def expect(self, pattern: str) -> None:
        """Allow a complaint that belongs to the test: the browser reports every answer of 400 and more."""
        self.expected.append(pattern)

    def check(self) -> None:
        left = [fault for fault in self.faults if not any(re.search(pattern, fault) for pattern in self.expected)]
        assert not left, "\n".join(left)


@pytest.fixture
def watch(server: str) -> Iterator[Watch]:
    """Fails its test when a browser complains or a page asks another server for something."""
    made = Watch(server)
    yield made
    made.check()


Opener = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser, server: str, watch: Watch) -> Iterator[Opener]:
    """`open_page(path, **options of the context)`: a page in a fresh context, with a watch on it."""
    contexts: list[BrowserContext] = []

    def opened(path: str, *, width: int = 1280, height: int = 900, **options: object) -> Page:
        context = browser.new_context(
            base_url=server, viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        watch.attach(context)
        page = context.new_page()
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def stored(browser: Browser, server: str) -> Stored:
    """One linked run, one comparison of it with an estimate, and a link to that, made through the API."""
    context = browser.new_context(base_url=server)
    ask = context.request
    upload = ask.post(
        "/api/v1/runs",
        multipart={
            "file": {"name": "stored.json", "mimeType": "application/json", "buffer": vllm_result(date="20261121-08")},
            "hardware": "nvidia-h100-sxm",
            "model": "llama-3.1-8b",
            "name": "A run that other tests look at",
        },
    )
    assert upload.status == 201, upload.text()
    run = upload.json()["runs"][0]["id"]
    request = {
        "hardware": "nvidia-h100-sxm",
        "model": "llama-3.1-8b",
        "workload": {"phase": "decode", "batch": 32, "context_len": 1100},
    }
    made = ask.post(
        "/api/v1/comparisons",
        data={
            "title": "A comparison that other tests look at",
            "notes": "Served against its bound.",
            "items": [{"run": run}, {"estimate": {"kind": "bound", "request": request}, "label": "the bound"}],
        },
    )
    assert made.status == 201, made.text()
    link = ask.post(f"/api/v1/comparisons/{made.json()['id']}/share", data={})
    assert link.status == 201, link.text()
    addresses = Stored(f"/runs/{run}", f"/comparisons/{made.json()['id']}", f"/s/{link.json()['token']}")
    context.close()
    return addresses
