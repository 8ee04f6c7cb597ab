"""The command line: what it does, and that whatever a person can put right is one line and exit code 2."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from app import __version__
from app.cli import _without_tokens, main
from app.domain.run import Metric, ParsedRun
from app.settings import VARIABLES, Settings
from app.storage import comparisons, hardware, links, mappings, runs, uploads
from app.storage.store import opened_storage

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("BYTEBOUND_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def stored_run(data_dir: Path) -> str:
    assert main(["migrate"]) == 0
    with opened_storage(Settings(data_dir=data_dir)) as storage, storage.write() as session:
        upload, _ = uploads.add_or_get(
            session=session, blobs=storage.blobs, data=b"{}", file_name="a.json", format="bytebound"
        )
        run = runs.add_run(
            session=session,
            upload_id=upload.id,
            position=0,
            parsed=ParsedRun("a run", (Metric("ttft_s", 0.25, "p99", pointer="/x", raw="250", raw_unit="ms"),)),
            format="bytebound",
            tags=("nightly",),
        )
        links.remember(session=session, kind="model", hint_key="a", hint="A", target_id="llama-3.1-8b")
        mappings.save(session=session, columns_sha256="ab" * 32, payload={"unit": "s"})
        hardware.add(session=session, entry_id="lab", name="Lab", payload={"memory_bytes": 8e10})
        comparisons.add(session=session, title="t", snapshot={"items": [1]}, item_count=1, app_version="0.1.0")
    return run.id


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"bytebound {__version__} (database revision ")


def test_migrating_twice(capsys: pytest.CaptureFixture[str], data_dir: Path) -> None:
    assert main(["migrate"]) == 0
    assert main(["migrate"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("migrated the database from revision none to ")
    assert second.startswith("nothing to do")
    assert (data_dir / "bytebound.sqlite3").is_file()


def test_backup_and_restore(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = stored_run(data_dir)
    file = str(tmp_path / "b.tar")
    assert main(["backup", file]) == 0
    assert "1 upload, 1 run, 1 comparison," in capsys.readouterr().out
    assert main(["backup", file]) == 2
    monkeypatch.setenv("BYTEBOUND_DATA_DIR", str(tmp_path / "other"))
    assert main(["restore", file]) == 0
    assert main(["restore", file]) == 2
    captured = capsys.readouterr()
    assert [line.startswith("bytebound: ") for line in captured.err.splitlines()] == [True, True]
    assert main(["restore", file, "--force"]) == 0
    assert "before-restore-" in capsys.readouterr().out
    with opened_storage(Settings(data_dir=tmp_path / "other")) as storage, storage.read() as session:
        assert runs.get_run(session=session, run_id=run_id).name == "a run"


def test_export_writes_one_value_a_line(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_id = stored_run(data_dir)
    capsys.readouterr()
    assert main(["export"]) == 0
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    kinds = ["export", "hardware", "remembered_link", "column_mapping", "run", "comparison"]
    assert [line["kind"] for line in lines] == kinds
    assert (lines[2]["of"], lines[2]["target_id"], lines[3]["payload"]) == ("model", "llama-3.1-8b", {"unit": "s"})
    run = lines[4]
    assert (run["id"], run["tags"]) == (run_id, ["nightly"])
    assert run["metrics"] == [
        {
            "name": "ttft_s",
            "value": 0.25,
            "stat": "p99",
            "pointer": "/x",
            "raw": "250",
            "raw_unit": "ms",
            "count": None,
            "unit": "s",
        }
    ]
    assert lines[5]["snapshot"] == {"items": [1]}
    target = tmp_path / "out.jsonl"
    assert main(["export", "--output", str(target)]) == 0
    assert target.read_text() == printed
    assert main(["export", "--output", str(target)]) == 2
    assert main(["export", "--output", str(tmp_path / "nowhere" / "out.jsonl")]) == 2
    assert target.read_text() == printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "out.jsonl"]


def test_the_catalogue_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalog-lint"]) == 0
    assert "all valid" in capsys.readouterr().out


def test_a_wrong_setting_stops_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_dir: Path
) -> None:
    monkeypatch.setenv("BYTEBOUND_PORT", "eighty")
    assert main(["migrate"]) == 2
    assert capsys.readouterr().err == (
        "bytebound: BYTEBOUND_PORT must be a whole number from 0 to 65535, not 'eighty'\n"
    )
    assert not data_dir.exists()


def test_a_port_in_use_is_said_before_anything_changes(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot listen on 127.0.0.1" in line
    assert "--port" in line
    assert not (data_dir / "bytebound.sqlite3").exists()


def test_a_host_that_is_not_ours_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    # 192.0.2.0/24 is set aside for documentation: no machine has such an address.
    assert main(["serve", "--host", "192.0.2.1", "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "192.0.2.1" in line


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["migrate"], ["export"]])
def test_a_data_folder_that_cannot_be_used_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BYTEBOUND_DATA_DIR", str(tmp_path / "file" / "data"))
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bytebound: cannot make the data folder ")


def test_a_data_folder_that_is_read_only_is_said(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir.mkdir()
    # Asked, not tried: a superuser, as which tests often run, may write anywhere.
    monkeypatch.setattr("app.storage.store.os.access", lambda path, _mode: Path(path) != data_dir)
    assert main(["serve", "--port", "0"]) == 2
    assert "is not writable" in capsys.readouterr().err


def test_files_are_imported_as_uploads_are(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = ROOT / "tests" / "fixtures" / "uploads" / "vllm-bench-serve" / "1.json"
    options = ["--hardware", "nvidia-h100-sxm", "--name", "nightly run", "--tag", "nightly", "--tag", "main"]
    assert main(["import", *options, str(sample)]) == 0
    assert main(["import", str(sample)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "vllm-bench-serve: " in first
    assert "stored already" in second
    with opened_storage(Settings(data_dir=data_dir)) as storage, storage.read() as session:
        (run,) = runs.list_runs(session=session).items
        assert (run.name, run.hardware_id, run.tags) == ("nightly run", "nvidia-h100-sxm", ("nightly", "main"))
        assert runs.get_run(session=session, run_id=run.id).upload.size_bytes == sample.stat().st_size


def test_a_refused_file_does_not_stop_the_others(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = ROOT / "tests" / "fixtures" / "uploads" / "vllm-bench-serve" / "1.json"
    monkeypatch.setenv("BYTEBOUND_MAX_UPLOAD_BYTES", "1000000")
    (tmp_path / "notes.txt").write_text("not a benchmark")
    (tmp_path / "large.json").write_bytes(b" " * 1_000_001)
    paths = [tmp_path / "notes.txt", tmp_path / "large.json", tmp_path / "missing.json", tmp_path]
    assert main(["import", *map(str, paths), str(sample)]) == 1
    captured = capsys.readouterr()
    assert [
        line.startswith(f"bytebound: {path}: ") for line, path in zip(captured.err.splitlines(), paths, strict=True)
    ]
    assert "BYTEBOUND_MAX_UPLOAD_BYTES" in captured.err
    assert len(captured.out.splitlines()) == 1


def test_unknown_hardware_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    sample = ROOT / "tests" / "fixtures" / "uploads" / "vllm-bench-serve" / "1.json"
    assert main(["import", "--hardware", "abacus", str(sample)]) == 1
    assert "abacus" in capsys.readouterr().err


def test_unknown_commands_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert all(variable.name in shown for variable in VARIABLES)


def test_a_log_line_shows_no_token() -> None:
    arguments = ("127.0.0.1:5000", "GET", "/api/v1/shares/SECRET-token_1?x=1", "1.1", 200)
    record = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None)
    assert _without_tokens(record)
    assert record.getMessage() == '127.0.0.1:5000 - "GET /api/v1/shares/...?x=1 HTTP/1.1" 200'
    page = logging.LogRecord("uvicorn.access", logging.INFO, "", 0, "%s", ("/s/SECRET",), None)
    assert _without_tokens(page)
    assert page.getMessage() == "/s/..."


def test_output_cut_short_by_its_reader_is_no_crash(data_dir: Path) -> None:
    stored_run(data_dir)
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "app.cli", "export"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_serve_migrates_and_answers_until_interrupted(data_dir: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "app.cli", "serve", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        first_line = server.stdout.readline()
        assert first_line.startswith(f"Bytebound {__version__} on http://127.0.0.1:"), server.communicate()
        address = first_line.split()[3]
        # The port is open from before the app is loaded, so this waits for the first answer instead of failing.
        with urllib.request.urlopen(f"{address}/readyz", timeout=60) as answer:
            assert answer.status == 200
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=60)
        assert server.returncode == 0, errors
    finally:
        server.kill()
        server.communicate()
    assert (data_dir / "bytebound.sqlite3").is_file()
    # The last connection put the log back into the database.
    assert not (data_dir / "bytebound.sqlite3-wal").exists()


def test_the_probe_says_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["probe", "--quick", "--out", str(tmp_path / "probe.json")]) == 2
    assert "needs PyTorch" in capsys.readouterr().err
    assert not (tmp_path / "probe.json").exists()
