"""Settings: defaults, every variable, and refusals that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import VARIABLES, RateLimits, Settings, SettingsError, load_settings


def test_defaults() -> None:
    settings = load_settings({})
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.data_dir == Path.cwd() / "data"
    assert settings.database_path == Path.cwd() / "data" / "bytebound.sqlite3"
    assert settings.blob_dir == Path.cwd() / "data" / "blobs"
    assert settings.max_upload_bytes == 2_147_483_648
    assert (settings.public_url, settings.public_origin, settings.trusted_proxies) == (None, None, ())
    assert settings.rate_limits == RateLimits(60, 1200, 120)
    assert settings == Settings()


def test_empty_variables_count_as_not_set() -> None:
    assert load_settings({variable.name: " " for variable in VARIABLES}) == Settings()


def test_every_variable_is_read(tmp_path: Path) -> None:
    settings = load_settings(
        {
            "BYTEBOUND_HOST": "0.0.0.0",
            "BYTEBOUND_PORT": "9000",
            "BYTEBOUND_DATA_DIR": str(tmp_path),
            "BYTEBOUND_DATABASE_URL": "postgresql+psycopg://user:pw@db/bytebound",
            "BYTEBOUND_MAX_UPLOAD_BYTES": "1000",
            "BYTEBOUND_MAX_TEXT_BYTES": "100",
            "BYTEBOUND_MAX_STREAM_BYTES": "200",
            "BYTEBOUND_MAX_JSON_VALUES": "300",
            "BYTEBOUND_MAX_ZIP_MEMBERS": "4",
            "BYTEBOUND_BACKGROUND_BYTES": "0",
            "BYTEBOUND_READERS": "2",
            "BYTEBOUND_PUBLIC_URL": "https://Bench.Example.org:8443/bytebound/",
            "BYTEBOUND_TRUSTED_PROXIES": "10.1.2.3/8, ::1",
            "BYTEBOUND_UPLOADS_PER_MINUTE": "1",
            "BYTEBOUND_ESTIMATES_PER_MINUTE": "0",
            "BYTEBOUND_SHARE_LOOKUPS_PER_MINUTE": "3",
        }
    )
    assert settings == Settings(
        host="0.0.0.0",
        port=9000,
        data_dir=tmp_path,
        database_url="postgresql+psycopg://user:pw@db/bytebound",
        max_upload_bytes=1000,
        max_text_bytes=100,
        max_stream_bytes=200,
        max_json_values=300,
        max_zip_members=4,
        background_bytes=0,
        readers=2,
        public_url="https://bench.example.org:8443/bytebound",
        trusted_proxies=("10.0.0.0/8", "::1/128"),
        rate_limits=RateLimits(1, 0, 3),
    )
    assert settings.public_origin == "https://bench.example.org:8443"
    assert settings.database_path is None


def test_a_sqlite_url_names_a_file() -> None:
    assert load_settings({"BYTEBOUND_DATABASE_URL": "sqlite:////var/lib/b.db"}).database_path == Path("/var/lib/b.db")
    assert load_settings({"BYTEBOUND_DATABASE_URL": "sqlite:///b.db"}).database_path == Path.cwd() / "b.db"


def test_host_and_port_can_be_given_over_the_environment() -> None:
    settings = load_settings({"BYTEBOUND_PORT": "nonsense"}, host="::1", port=0)
    assert (settings.host, settings.port) == ("::1", 0)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("BYTEBOUND_PORT", "65536", "0 to 65535"),
        ("BYTEBOUND_PORT", "-1", "0 to 65535"),
        ("BYTEBOUND_PORT", "http", "whole number"),
        ("BYTEBOUND_PORT", "8_000", "whole number"),
        ("BYTEBOUND_PORT", "٨٠٠٠", "whole number"),
        ("BYTEBOUND_PORT", "--1", "whole number"),
        ("BYTEBOUND_PORT", "9" * 5000, "whole number"),
        ("BYTEBOUND_MAX_UPLOAD_BYTES", "0", "from 1"),
        ("BYTEBOUND_MAX_UPLOAD_BYTES", "256MiB", "whole number"),
        ("BYTEBOUND_DATABASE_URL", "sqlite://", "sqlite:///FILE"),
        ("BYTEBOUND_DATABASE_URL", "sqlite:///:memory:", "in memory"),
        ("BYTEBOUND_DATABASE_URL", "mysql://localhost/x", "postgresql"),
        ("BYTEBOUND_PUBLIC_URL", "bench.example.org", "https://"),
        ("BYTEBOUND_PUBLIC_URL", "ftp://bench.example.org", "https://"),
        ("BYTEBOUND_PUBLIC_URL", "https://user:pw@bench.example.org", "https://"),
        ("BYTEBOUND_PUBLIC_URL", "https://bench.example.org:99999", "https://"),
        ("BYTEBOUND_PUBLIC_URL", "https://[::1", "https://"),
        ("BYTEBOUND_TRUSTED_PROXIES", "proxy.example.org", "10.0.0.0/8"),
        ("BYTEBOUND_UPLOADS_PER_MINUTE", "1.5", "whole number"),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(name: str, value: str, wanted: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    (problem,) = caught.value.problems
    assert problem.startswith(name)
    assert wanted in problem


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"BYTEBOUND_DATABASE_URL": "mysql://user:secret@localhost/x"})
    assert "secret" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"BYTEBOUND_PORT": "x", "BYTEBOUND_ESTIMATES_PER_MINUTE": "y"})
    assert len(caught.value.problems) == 2
