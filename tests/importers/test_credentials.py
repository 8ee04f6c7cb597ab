"""Credentials in a file: what is kept of a run goes without them, and ordinary words stay."""

from __future__ import annotations

import json

import pytest

from app.importers.credentials import without_secrets
from app.importers.registry import parse_upload

KEY = "sk-" + "a1b2c3d4" * 4


def native(**fields: object) -> bytes:
    return json.dumps(
        {"bytebound": 1, "runs": [{"name": "a run", "metrics": {"output_tokens_per_s": 5}, **fields}]}
    ).encode()


def test_a_run_is_kept_without_the_credentials_of_its_file() -> None:
    upload = parse_upload(
        native(
            name=f"nightly {KEY}",
            software={"engine": "vllm", "api_key": "plain", "command": "serve --api-key plain --port 1", "key": KEY},
            notes="HF_TOKEN=plain, token=plain, at http://me:plain@host/v1, Authorization: Bearer plain.plain.plain",
        )
    )
    (run,) = upload.runs
    kept = repr((run.name, run.software, run.notes))
    assert "plain" not in kept
    assert KEY not in kept
    assert run.software["command"] == "serve --api-key [removed] --port 1"
    assert "api_key" not in run.software
    (finding,) = [finding for finding in run.findings if finding.check == "left-out"]
    assert set(finding.fields) == {"name", "notes", "software.api_key", "software.command", "software.key"}


@pytest.mark.parametrize(
    "text",
    [
        "12 ms per token: 12 ms, time-per-output-token: 38ms",
        "hf_transformers backend, sk-learn, --tokenizer llama --max-tokens 5",
        "a secret sauce, and the password of the day",
        "https://host:8000/v1 at 10 req/s",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert without_secrets({"notes": text}) == {"notes": text}
    (run,) = parse_upload(native(notes=text)).runs
    assert run.notes == text
    assert not [finding for finding in run.findings if finding.check == "left-out"]
