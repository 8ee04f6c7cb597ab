"""The set-up is reproducible and says nothing about the machine it was written on."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import plotly.offline
import pytest

import app

ROOT = Path(__file__).resolve().parents[2]
PYTHON_LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-node.lock")
ADDRESS = re.compile(r"[a-z+]+://|index[-]url|find[-]links|trusted[-]host", re.IGNORECASE)
REQUIREMENT = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.-])/(?:(?:work|root)/\w|(?:home|Users)/(?!user/|somebody/|joe/)\w)")
"""Folders of a machine. Uploaded files name some, so fixtures and their tests call the owner user, somebody or joe."""
REGISTRY_HOST = re.compile(r"registry\.npmjs|registry\.yarnpkg|files\.pythonhosted|pypi\.org/simple")


def load_assets() -> ModuleType:
    spec = importlib.util.spec_from_file_location("assets_tool", ROOT / "tools" / "assets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def assets() -> ModuleType:
    return load_assets()


def npm_lock() -> dict[str, dict[str, str]]:
    packages: dict[str, dict[str, str]] = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    return packages


def pinned(name: str) -> dict[str, str]:
    return dict(REQUIREMENT.findall((ROOT / name).read_text()))


def test_npm_lock_has_hashes_and_no_addresses() -> None:
    text = (ROOT / "package-lock.json").read_text()
    assert "://" not in text
    assert '"resolved"' not in text
    for name, entry in npm_lock().items():
        if name:
            assert entry["integrity"].startswith("sha512-"), name


def test_npm_versions_are_exact_and_locked(assets: ModuleType) -> None:
    package = json.loads((ROOT / "package.json").read_text())
    asked = {**package["dependencies"], **package["devDependencies"]}
    assert asked == assets.locked_versions()


def test_every_copied_file_names_its_locked_version(assets: ModuleType) -> None:
    versions = assets.locked_versions()
    assert {asset.package for asset in assets.ASSETS} == set(
        json.loads((ROOT / "package.json").read_text())["dependencies"]
    )
    for asset in assets.ASSETS:
        assert f"-{versions[asset.package]}." in assets.targets()[asset.name]


def test_vendor_folder_holds_what_the_manifest_names(assets: ModuleType) -> None:
    assert assets.up_to_date(), "run `make setup`"
    assert json.loads(assets.MANIFEST.read_text()) == assets.targets()
    for asset in assets.ASSETS:
        served = assets.VENDOR / assets.targets()[asset.name]
        assert served.read_bytes() == (assets.MODULES / asset.package / asset.path).read_bytes()


def test_test_only_files_are_not_served(assets: ModuleType) -> None:
    assert not [path.name for path in assets.VENDOR.iterdir() if "axe" in path.name]


def test_figures_are_validated_against_the_bundle_that_draws_them(assets: ModuleType) -> None:
    bundled = assets.locked_versions()["plotly.js-cartesian-dist-min"]
    assert plotly.offline.get_plotlyjs_version() == bundled


@pytest.mark.parametrize("name", PYTHON_LOCKS)
def test_python_locks_have_hashes_and_no_addresses(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not ADDRESS.search(text)
    assert not re.search(r"^-e |@ file| @ ", text, re.MULTILINE)
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    assert blocks
    for block in blocks:
        assert "--hash=sha256:" in block, block.splitlines()[0]


def test_tests_run_the_versions_that_are_served() -> None:
    served, tested = pinned("requirements.lock"), pinned("requirements-dev.lock")
    assert served.items() <= tested.items()


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {re.split(r"[\[<>=~! ]", requirement)[0].lower() for requirement in requirements}

    assert names(project["dependencies"]) <= set(pinned("requirements.lock"))
    assert names(project["optional-dependencies"]["dev"]) <= set(pinned("requirements-dev.lock"))
    assert "plotly" not in pinned("requirements.lock"), "charts leave the server as plain JSON"


def test_version_has_one_home() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["setuptools"]["dynamic"]["version"]["attr"] == "app.__version__"
    assert re.fullmatch(r"\d+\.\d+\.\d+", app.__version__)


def test_tracked_files_name_no_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if not name or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            if MACHINE_PATH.search(line) or REGISTRY_HOST.search(line):
                found.append(f"{name}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)
