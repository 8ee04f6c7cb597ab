"""Make sure that the browser tests have a Chromium, and print where it is.

    python tools/browser.py

Prints one line: the path to start, or an empty line when Playwright's own download is to be used (start it
without `executable_path`). What is being tried goes to standard error. Order: BYTEBOUND_CHROMIUM, a Chromium
or Chrome of this machine, Debian's package (as root only), Playwright's download.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MAC = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)


class BrowserError(Exception):
    """No browser to test with; the message says what to do."""


def main() -> int:
    try:
        print(find())
    except BrowserError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def find() -> str:
    """Path of a Chromium that starts; empty for Playwright's own."""
    named = os.environ.get("BYTEBOUND_CHROMIUM")
    if named:
        if not starts(named):
            raise BrowserError(f"BYTEBOUND_CHROMIUM names {named}, which does not start.")
        return named
    found = installed()
    if found:
        return found
    if is_debian() and is_root():
        say("installing Debian's chromium with apt-get")
        attempt("apt-get", "update", "-qq")
        attempt("apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium", "fonts-liberation")
        found = installed()
        if found:
            return found
    if not own_is_there():
        say("fetching Playwright's own Chromium")
        system_libraries = ["--with-deps"] if platform.system() == "Linux" and is_root() else []
        attempt(sys.executable, "-m", "playwright", "install", *system_libraries, "chromium")
        if not own_is_there():
            raise BrowserError(
                "No Chromium for the browser tests: none on PATH, and Playwright could not fetch its own.\n"
                "Debian: sudo apt-get install chromium. Elsewhere: install Chromium or Chrome, or set\n"
                "BYTEBOUND_CHROMIUM to the path of one. The other tests: .venv/bin/pytest -m 'not browser'"
            )
    return ""


def installed() -> str:
    candidates = [shutil.which(name) for name in NAMES]
    if platform.system() == "Darwin":
        candidates += MAC
    return next((path for path in candidates if path and starts(path)), "")


def starts(path: str) -> bool:
    """Ubuntu puts a `chromium-browser` on PATH that only asks for a snap, so being there is not enough."""
    if not Path(path).is_file():
        return False
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def own_is_there() -> bool:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path).is_file()


def is_debian() -> bool:
    release = Path("/etc/os-release")
    return (
        shutil.which("apt-get") is not None
        and release.is_file()
        and "ID=debian" in release.read_text(encoding="utf-8").splitlines()
    )


def is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def attempt(*command: str) -> None:
    """Run and go on: what counts is whether a browser is there afterwards."""
    subprocess.run(command, stdout=sys.stderr, check=False)


def say(text: str) -> None:
    print(f"browser: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
