"""The gate as a command: exit status 0, 1 and 2, in the local database and over a server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from app.cli import main
from app.main import create_app
from app.services.gate import parse_rule
from app.settings import VARIABLES, Settings
from tests.services.native_runs import native


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    monkeypatch.setenv("BYTEBOUND_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def result(folder: Path, tpot: float) -> str:
    path = folder / f"{tpot}.json"
    path.write_bytes(native(name=f"tpot {tpot}", metrics={"tpot_s": {"mean": tpot, "p99": 2 * tpot}}))
    return str(path)


def test_exit_status_says_whether_it_passed_failed_or_could_not_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = ["--rule", "tpot_s.mean=5%", "--rule", "tpot_s.p99=0.5"]
    assert main(["migrate"]) == 0
    assert main(["check", result(tmp_path, 0.0100), *rule]) == 2  # nothing before it
    assert "no earlier run" in capsys.readouterr().err
    assert main(["check", result(tmp_path, 0.0102), *rule]) == 0
    assert "PASS run" in capsys.readouterr().out
    assert main(["check", result(tmp_path, 0.0120), "--baseline", "series", "--last", "1", "--json", *rule]) == 1
    (answer,) = json.loads(capsys.readouterr().out)
    assert [row["passed"] for row in answer["rows"]] == [False, True]
    assert main(["check", answer["run"], "--baseline", answer["baseline"], "--rule", "tpot_s.mean=20%"]) == 0
    assert "17.65% worse, 20.00% allowed" in capsys.readouterr().out
    assert main(["check", "nothing", *rule]) == 2
    assert main(["check", answer["run"], "--rule", "tpot_s.mean"]) == 2
    assert main(["check", answer["run"], "--rule", "speed=5%"]) == 2
    unreadable = tmp_path / "bad.json"
    unreadable.write_text('{"a": 1}')
    assert main(["check", str(unreadable), *rule]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.fixture
def address(data_dir: Path) -> Iterator[str]:
    assert main(["migrate"]) == 0
    app = create_app(Settings(data_dir=data_dir))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + 60
    while not server.started and thread.is_alive() and time.monotonic() < deadline:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(30)


def test_a_server_is_asked_in_the_same_words(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = ["--rule", "tpot_s.mean=5%", "--url", address]
    assert main(["check", result(tmp_path, 0.0100), "--tag", "nightly", *rule]) == 2
    assert capsys.readouterr().err.count("no earlier run") == 1
    assert main(["check", result(tmp_path, 0.0101), *rule]) == 0
    assert main(["check", result(tmp_path, 0.0150), *rule]) == 1
    assert "FAIL tpot_s.mean" in capsys.readouterr().out
    assert main(["check", "nothing", *rule]) == 2
    assert "answers 404" in capsys.readouterr().err
    assert main(["check", "nothing", "--rule", "tpot_s=5%", "--url", "http://127.0.0.1:9"]) == 2
    assert main(["check", "nothing", "--rule", "tpot_s=5%", "--url", "server"]) == 2


def test_rules_are_percentages_or_shares() -> None:
    assert parse_rule("tpot_s.p99=5%") == {"metric": "tpot_s.p99", "max_regression": 0.05}
    assert parse_rule("tpot_s=0.02") == {"metric": "tpot_s", "max_regression": 0.02}
    for bad in ("tpot_s", "=5%", "tpot_s=fast", "tpot_s="):
        with pytest.raises(ValueError, match="METRIC=LIMIT"):
            parse_rule(bad)
