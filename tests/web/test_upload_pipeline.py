"""Large files, archives and many files at once, over HTTP: jobs, cancelling, limits, and a server that is killed."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.services.native_runs import native

ROOT = Path(__file__).resolve().parents[2]
UPLOADS = ROOT / "tests" / "fixtures" / "uploads"
VLLM = (UPLOADS / "vllm-bench-serve" / "1.json").read_bytes()
LLAMA = (UPLOADS / "llama-bench" / "2.jsonl").read_bytes()
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


@pytest.fixture
def background(settings: Settings):
    """A client of a server that reads every file in a process of its own."""
    with TestClient(create_app(replace(settings, background_bytes=0)), follow_redirects=False) as made:
        yield made


def finished(client: Any, job: str) -> dict[str, Any]:
    for _ in range(300):
        answer = client.get(f"/api/v1/jobs/{job}").json()
        if answer["state"] in ("done", "failed", "cancelled"):
            return answer
        time.sleep(0.1)
    raise AssertionError(answer)


def spooled_files(settings: Settings) -> list[str]:
    return sorted(path.name for path in settings.spool_dir.rglob("*") if path.is_file() and path.name != "lock")


def stored_blobs(settings: Settings) -> list[str]:
    return sorted(path.name for path in settings.blob_dir.rglob("*") if path.is_file())


def test_a_large_file_is_answered_with_a_job_and_then_its_runs(background: TestClient, settings: Settings):
    answer = background.post("/api/v1/runs?filename=big.json&tags=ci", content=VLLM)
    assert answer.status_code == 202, answer.text
    job = answer.json()["job"]
    assert answer.headers["location"] == f"/api/v1/jobs/{job}"
    page = background.get(f"/jobs/{job}")
    assert page.status_code in (200, 303)
    if page.status_code == 200:
        assert "big.json" in page.text
        assert "Cancel" in page.text
        assert "big.json" in background.get("/runs").text
    done = finished(background, job)
    assert (done["state"], done["progress"]) == ("done", 1.0)
    (run,) = done["result"]["runs"]
    assert run["tags"] == ["ci"]
    followed = background.get(f"/jobs/{job}?follow=1", headers=HTMX)
    assert followed.headers["hx-redirect"] == f"/runs/{run['id']}"
    assert background.get(f"/jobs/{job}").headers["location"] == f"/runs/{run['id']}"
    assert background.get(f"/api/v1/runs/{run['id']}/raw").content == VLLM
    assert background.post("/api/v1/runs", content=VLLM).status_code == 200
    assert background.delete(f"/api/v1/jobs/{job}").json()["state"] == "done"
    assert spooled_files(settings) == []
    assert background.get("/api/v1/jobs/nothing").status_code == 404


def test_a_job_that_is_refused_says_why_and_one_that_is_cancelled_stores_nothing(
    background: TestClient, settings: Settings
):
    refused = background.post("/runs", files={"file": ("x.json", b'{"epoch": 3}')}).headers["location"]
    waiting = background.post("/api/v1/runs?filename=y.json", content=VLLM).json()["job"]
    assert background.delete(f"/api/v1/jobs/{waiting}").json()["state"] == "cancelled"
    problem = finished(background, refused.rsplit("/", 1)[1])["problem"]
    assert (problem["status"], problem["reason"]) == (422, "not-recognised")
    assert "epoch" in background.get(refused).text
    assert "nothing was stored" in background.get(f"/jobs/{waiting}").text
    again = background.post("/runs", files={"file": ("y.json", VLLM)}, headers=HTMX).headers["hx-redirect"]
    stopped = background.post(again + "/cancel", headers=HTMX)
    assert stopped.status_code == 200
    for _ in range(100):
        if not spooled_files(settings):
            break
        time.sleep(0.1)
    assert spooled_files(settings) == []
    assert stored_blobs(settings) == []
    assert background.get("/api/v1/runs").json()["total"] == 0
    job = background.post("/api/v1/runs", content=VLLM).json()["job"]
    assert finished(background, job)["state"] == "done"


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return out.getvalue()


def test_every_file_of_an_archive_is_answered_by_itself(client: TestClient):
    data = archive(
        {
            "sweep/": b"",
            "sweep/a.json": VLLM,
            "../../etc/passwd": b"nobody\n",
            "__MACOSX/sweep/._a.json": b"\x00\x05",
            "inner.zip": archive({"a.json": VLLM}),
            "b\u202e<script>.jsonl": LLAMA,
            "bomb.json": b"[" + b" " * 3_000_000,
        }
    )
    answer = client.post("/api/v1/runs?filename=night.zip", content=data)
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert body["format"] == "zip"
    names = [member["name"] for member in body["members"]]
    assert names == ["sweep/a.json", "../../etc/passwd", "inner.zip", "b\ufffd<script>.jsonl", "bomb.json"]
    assert [member.get("format") for member in body["members"]] == [
        "vllm-bench-serve",
        None,
        None,
        "llama-bench",
        None,
    ]
    assert [member.get("reason") for member in body["members"] if not member["runs"]] == [
        "not-recognised",
        "binary",
        "too-large",
    ]
    assert [run["id"] for run in body["runs"]] == [run for member in body["members"] for run in member["runs"]]
    run = client.get(f"/api/v1/runs/{body['runs'][0]['id']}").json()
    assert (run["format"], run["upload"]["member"]) == ("vllm-bench-serve", "sweep/a.json")
    assert all(metric["pointer"].startswith("sweep/a.json: /") for metric in run["metrics"].values())
    assert client.get(f"/api/v1/runs/{run['id']}/raw").content == data
    assert "sweep/a.json" in client.get(f"/runs/{run['id']}").text
    again = client.post("/runs", files={"file": ("night.zip", data)})
    assert again.status_code == 200
    assert "stored before" in again.text
    assert "<script>.jsonl" not in again.text
    assert again.text.count("not read.") == 3


def test_archives_that_give_nothing_are_refused_with_every_reason(settings: Settings):
    with TestClient(create_app(replace(settings, max_zip_members=3, max_stream_bytes=50_000))) as client:

        def refused(data: bytes) -> dict[str, Any]:
            answer = client.post("/api/v1/runs?filename=x.zip", content=data)
            assert answer.status_code == 422, answer.text
            return answer.json()

        nothing = refused(archive({"a.txt": b"hello", "b.json": b"{"}))
        assert [error["loc"] for error in nothing["errors"]] == [["a.txt"], ["b.json"]]
        assert refused(archive({f"{n}.json": b"{}" for n in range(4)}))["reason"] == "too-large"
        assert refused(archive({"a": b"x" * 30_000, "b": b"y" * 30_000}))["reason"] == "too-large"
        assert refused(archive({}))["reason"] == "empty"
        assert refused(archive({"a.json": VLLM})[:-30])["reason"] == "damaged"
        assert refused(archive({"[Content_Types].xml": b"<x/>"}))["seen"] == "This is an Excel or Word document."
        locked = bytearray(archive({"a.json": VLLM}))
        locked[6] |= 1
        locked[locked.rindex(b"PK\x01\x02") + 8] |= 1
        assert "password" in refused(bytes(locked))["errors"][0]["msg"]
        damaged = bytearray(archive({"a.json": VLLM}, zipfile.ZIP_STORED))
        damaged[200] ^= 0xFF
        assert "damaged" in refused(bytes(damaged))["errors"][0]["msg"]


def test_twenty_files_are_answered_in_order_each_by_itself(settings: Settings):
    with TestClient(create_app(replace(settings, max_stream_bytes=20_000)), follow_redirects=False) as client:
        sent = [(f"{n}.json", native(name=f"run {n}")) for n in range(20)]
        sent[3] = ("3.json", b'{"epoch": 3}')
        sent[7] = ("7.json", b"x" * 20_001)
        sent[11] = ("11.json", sent[10][1])
        files = [("file", (name, data)) for name, data in sent]
        body = client.post("/api/v1/runs", files=files, data={"tags": "many"}).json()
        statuses = [item["status"] for item in body["items"]]
        assert [n for n, status in enumerate(statuses) if status != 201] == [3, 7, 11]
        assert (statuses[3], statuses[7], statuses[11]) == (422, 422, 200)
        assert body["items"][7]["reason"] == "too-large"
        assert body["summary"] == {"stored": 17, "stored_before": 1, "being_read": 0, "refused": 2}
        assert [item["runs"][0]["name"] for item in body["items"] if item["status"] == 201] == [
            f"run {n}" for n in range(20) if n not in (3, 7, 11)
        ]
        page = client.post("/runs", files=files, headers=HTMX)
        assert "20 files: 18 stored before, 2 refused." in page.text
        assert re.findall(r"(\d+)\.json: (?:stored|nothing)", page.text) == [str(n) for n in range(20)]
    assert spooled_files(settings) == []


@pytest.mark.parametrize(
    "body",
    [
        b"--b\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n{}",
        b"--b\r\nContent-Disposition: form-data\r\n\r\n{}\r\n--b--\r\n",
        b"--b\r\nX: " + b"y" * 10_000 + b"\r\n\r\n{}\r\n--b--\r\n",
        b"nothing of a form",
        b"--b\r\nContent-Disposition: form-data; name=tags\r\n\r\n" + b"y" * 100_000 + b"\r\n--b--\r\n",
    ],
)
def test_damaged_forms_are_refused_and_leave_nothing(client: TestClient, settings: Settings, body: bytes):
    answer = client.post("/api/v1/runs", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
    assert answer.status_code in (400, 422), answer.text
    assert spooled_files(settings) == []


def test_a_form_without_its_end_stores_nothing_of_itself(client: TestClient, settings: Settings):
    """The file of the last part may be cut anywhere, and the one before is no answer to what was sent."""
    part = b'--b\r\nContent-Disposition: form-data; name=file; filename="a.json"\r\n\r\n' + VLLM + b"\r\n"
    for body in (part + part[:-300], part + part, part):
        answer = client.post("/api/v1/runs", content=body, headers={"content-type": "multipart/form-data; boundary=b"})
        assert answer.status_code == 400
        assert "cut off" in answer.json()["detail"]
    assert client.get("/api/v1/runs").json()["total"] == 0
    assert spooled_files(settings) == []


# ---- a server that is killed ----------------------------------------------------------------------------------------


def served(settings: Settings) -> tuple[subprocess.Popen[str], str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("BYTEBOUND_")}
    environ |= {
        "BYTEBOUND_PORT": "0",
        "BYTEBOUND_DATA_DIR": str(settings.data_dir),
        "BYTEBOUND_BACKGROUND_BYTES": "0",
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main(['serve']))"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    return process, found[0]


@pytest.mark.skipif(sys.platform == "win32", reason="kills by a signal")
def test_a_server_killed_in_the_middle_of_uploads_leaves_nothing_of_them(settings: Settings):
    (settings.data_dir / "examples-offered").touch()
    process, base = served(settings)
    try:
        address = urlsplit(base)
        with socket.create_connection((address.hostname, address.port)) as half:
            head = f"POST /api/v1/runs?filename=half.json HTTP/1.1\r\nHost: x\r\nContent-Length: {len(VLLM)}\r\n\r\n"
            half.sendall(head.encode() + VLLM[:500])
            with urllib.request.urlopen(f"{base}/api/v1/runs?filename=whole.json", VLLM) as being_read:
                assert being_read.status == 202
            assert spooled_files(settings)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()
    assert settings.spool_dir.exists()
    app = create_app(settings)
    with TestClient(app) as client:
        assert spooled_files(settings) == []
        assert stored_blobs(settings) == []
        assert client.get("/api/v1/runs").json()["total"] == 0
        answer = client.post("/api/v1/runs?filename=whole.json", content=VLLM)
        assert answer.status_code == 201
        assert client.get(f"/api/v1/runs/{answer.json()['runs'][0]['id']}/raw").content == VLLM
        assert len(json.loads(VLLM)) > 5
