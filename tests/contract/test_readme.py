"""The README is true: its table of variables, its commands, the paths it names, and its curl lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from app.cli import _parser
from app.importers.registry import IMPORTERS
from app.settings import VARIABLES
from tests.services.native_runs import native

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = {"README.md": README} | {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))
}
ORIGIN = "http://127.0.0.1:8000"


def part(heading: str) -> str:
    """The text below a heading, up to the next one of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", README, re.MULTILINE)
    assert found is not None, f"no heading {heading!r}"
    rest = README[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def table(text: str) -> list[list[str]]:
    """Cells of the first table in a text, without its heading, code marks taken off."""
    rows = re.findall(r"^\|(.+)\|$", text, re.MULTILINE)
    return [[cell.strip().strip("`") for cell in row.split("|")] for row in rows[2:]]


def test_the_configuration_table_is_the_settings() -> None:
    assert table(part("Configuration")) == [[v.name, v.default, v.meaning] for v in VARIABLES]


def test_the_commands_are_those_of_the_program() -> None:
    usage = _parser().format_help()
    commands = {row[0] for row in table(part("Commands"))}
    listed = re.search(r"^commands?:|^positional arguments:\n", usage, re.MULTILINE)
    assert listed is not None
    offered = set(re.findall(r"^    ([a-z][a-z-]*)(?: |$)", usage[listed.end() :], re.MULTILINE))
    assert commands == offered


def test_every_importer_is_in_the_table_of_formats() -> None:
    named = {id_ for row in table(part("Formats")) for id_ in row[0].split("`, `")}
    assert named == {importer.id for importer in IMPORTERS}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document: str) -> None:
    text = DOCUMENTS[document]
    here = (ROOT / document).parent
    linked = [path for path in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in path]
    missing = [path for path in linked if not (here / path).exists()]
    rooms = "app|docs|migrations|static|templates|tests|tools|\\.ci"
    named = re.findall(rf"(?<![\w./-])((?:{rooms})(?:/[\w.-]+)*)(?=[\s`,;:)]|\.\s)", text)
    missing += [path for path in named if ("/" in path or f"`{path}`" in text) and not (ROOT / path).exists()]
    assert not missing


def test_the_decisions_are_numbered_without_gaps() -> None:
    files = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert files
    for number, file in enumerate(files, 1):
        assert file.name.startswith(f"{number:04}-")
        assert file.read_text(encoding="utf-8").startswith(f"# {number}. ")


def test_every_target_of_make_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z][a-z-]*)", README)) <= targets


def curl_commands(text: str) -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    tokens: list[list[str]] = []
    for block in blocks:
        for token in shlex.split(block):
            if token == "curl":
                tokens.append([])
            elif tokens:
                tokens[-1].append(token)
    return tokens


def run_curl(client: TestClient, arguments: list[str], files: dict[str, bytes]) -> tuple[int, dict[str, object]]:
    """What these arguments of curl would ask for, asked of the app."""
    form: list[tuple[str, str]] = []
    sent: list[tuple[str, tuple[str, bytes]]] = []
    headers: dict[str, str] = {}
    body: bytes | None = None
    url = ""
    rest = iter(arguments)
    for argument in rest:
        if argument == "-F":
            name, _, value = next(rest).partition("=")
            if value.startswith("@"):
                sent.append((name, (Path(value[1:]).name, files.get(value[1:]) or (ROOT / value[1:]).read_bytes())))
            else:
                form.append((name, value))
        elif argument == "-H":
            key, _, value = next(rest).partition(": ")
            headers[key] = value
        elif argument == "-d":
            body = next(rest).encode()
        elif argument == "--data-binary":
            body = files[next(rest).removeprefix("@")]
            headers.setdefault("content-type", "application/x-www-form-urlencoded")  # what curl would say
        elif argument != "-sS":
            assert argument.startswith(ORIGIN), argument
            url = argument.removeprefix(ORIGIN)
    assert urlsplit(url).path.startswith("/api/v1/")
    if sent:
        answer = client.post(url, files=sent, data=dict(form))
    else:
        answer = client.post(url, content=body, headers=headers)
    return answer.status_code, answer.json()


def test_the_first_minute_ends_with_a_run_against_its_bound(client: TestClient) -> None:
    (command,) = curl_commands(part("The first minute").replace("\n   ", "\n"))
    status, answer = run_curl(client, command, {})
    assert status == 201
    first = answer["runs"][0]  # type: ignore[index]
    assert first["model"]["id"] == "llama-3.1-8b"
    assert first["hardware"]["id"] == "nvidia-h100-sxm"
    assert 0 < first["efficiency"]["of_bound"] < 1


def test_both_ways_to_upload_and_the_gate(client: TestClient) -> None:
    form, raw = curl_commands(part("Uploading"))
    status, answer = run_curl(client, form, {"result.json": native(name="one")})
    assert status == 201
    baseline = answer["runs"][0]  # type: ignore[index]
    assert baseline["tags"] == ["nightly"]
    assert run_curl(client, form, {"result.json": native(name="one")})[0] == 200
    slower = {"tpot_s": {"mean": 0.0104, "p99": 0.0208}, "output_tokens_per_s": 99.0}
    status, answer = run_curl(client, raw, {"result.json": native(metrics=slower)})
    assert status == 201
    run = answer["runs"][0]  # type: ignore[index]

    (gate,) = curl_commands(part("A gate for CI"))
    filled = [text.replace("RUN_ID", run["id"]).replace("BASELINE_ID", baseline["id"]) for text in gate]
    status, answer = run_curl(client, filled, {})
    assert status == 200
    by_metric = {row["metric"]: row for row in answer["rows"]}  # type: ignore[attr-defined,union-attr]
    assert by_metric["tpot_s.p99"]["passed"] is True, "4 % slower, 5 % allowed"
    assert by_metric["output_tokens_per_s"]["passed"] is False, "the baseline does not report it"
    assert answer["passed"] is False
