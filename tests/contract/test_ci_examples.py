"""The CI examples of docs/ci.md: YAML that CI systems take, shell that parses, and requests that the gate accepts."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from app.cli import _parser
from app.services.gate import parse_rule
from tests.services.native_runs import native

TEXT = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


def scripts_of(block: str) -> list[str]:
    """Each script that an example runs: the steps of a GitHub job, the joined lines of a GitLab one."""
    told: dict[Any, Any] = yaml.safe_load(block)
    if "jobs" in told:
        # YAML 1.1 reads the key `on` as true, which GitHub knows
        assert told.get("on") or told.get(True)
        assert all(job["runs-on"] and job["steps"] for job in told["jobs"].values())
        return [step["run"] for job in told["jobs"].values() for step in job["steps"] if "run" in step]
    (job,) = told.values()
    assert all(isinstance(line, str) for line in job["script"])
    return ["\n".join(job["script"])]


def test_there_is_one_for_both_ways_on_both_systems():
    kinds = {("jobs" in yaml.safe_load(block), "bytebound check" in block) for block in BLOCKS}
    assert kinds == {(True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_script_is_shell_that_parses(block: str):
    for script in scripts_of(block):
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


COMMANDS = [block for block in BLOCKS if "bytebound check" in block]


@pytest.mark.parametrize("block", [*COMMANDS, TEXT], ids=["github", "gitlab", "text"])
def test_every_command_is_one_that_the_program_takes(block: str):
    line = re.search(r"bytebound (check .*?)(?<!\\)\n", block, re.DOTALL)
    assert line is not None
    arguments = _parser().parse_args(shlex.split(line[1].replace("\\\n", " ")))
    assert arguments.url.startswith("https://")
    assert all(parse_rule(rule)["max_regression"] < 0.2 for rule in arguments.rule)


@pytest.mark.parametrize("block", [b for b in BLOCKS if "curl" in b], ids=["github", "gitlab"])
def test_every_request_is_one_that_the_gate_answers(client: TestClient, block: str):
    for value in (0.0100, 0.0101):
        data = native(name=str(value), metrics={"tpot_s": {"mean": value, "p99": value}, "output_tokens_per_s": 100.0})
        sent = client.post("/api/v1/runs", files={"file": ("result.json", data)}, data={"tags": "main,abc"})
        assert sent.status_code == 201
    run = sent.json()["runs"][0]["id"]
    script = "\n".join(scripts_of(block))
    body = re.search(r"-d '(\{.*?\})' >", script, re.DOTALL)
    assert body is not None
    request = json.loads(body[1].replace("'\"$RUN\"'", run))
    answer = client.post("/api/v1/runs/check", json=request)
    assert answer.status_code == 200, answer.text
    assert answer.json()["passed"] is True
    assert "jq -e '.passed' check.json" in script
