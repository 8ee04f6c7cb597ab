"""Settings, read once from the environment. No other module reads `os.environ`."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

DATABASE_FILE_NAME = "bytebound.sqlite3"
DEFAULT_MAX_UPLOAD_BYTES = 2 * 2**30
DEFAULT_MAX_TEXT_BYTES = 128 * 2**20
DEFAULT_MAX_STREAM_BYTES = 2 * 2**30
DEFAULT_BACKGROUND_BYTES = 8 * 2**20
DEFAULT_MAX_JSON_VALUES = 4_000_000
DEFAULT_MAX_ZIP_MEMBERS = 200
SQLITE_PREFIX = "sqlite:///"


class SettingsError(ValueError):
    """One or more variables hold something that cannot be used. `problems` has one sentence for each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


@dataclass(frozen=True, slots=True)
class Variable:
    """One environment variable, as the README's table describes it."""

    name: str
    default: str
    meaning: str


VARIABLES: tuple[Variable, ...] = (
    Variable("BYTEBOUND_HOST", "127.0.0.1", "address that the server listens on"),
    Variable("BYTEBOUND_PORT", "8000", "port that the server listens on; 0 takes a free one"),
    Variable("BYTEBOUND_DATA_DIR", "./data", "folder for the database and the uploaded files"),
    Variable("BYTEBOUND_DATABASE_URL", f"SQLite file {DATABASE_FILE_NAME} in the data folder", "database"),
    Variable("BYTEBOUND_MAX_UPLOAD_BYTES", str(DEFAULT_MAX_UPLOAD_BYTES), "largest request body, in bytes"),
    Variable(
        "BYTEBOUND_MAX_TEXT_BYTES", str(DEFAULT_MAX_TEXT_BYTES), "largest file, unpacked, of a format held in memory"
    ),
    Variable(
        "BYTEBOUND_MAX_STREAM_BYTES", str(DEFAULT_MAX_STREAM_BYTES), "largest file, unpacked, of a format streamed"
    ),
    Variable("BYTEBOUND_MAX_JSON_VALUES", str(DEFAULT_MAX_JSON_VALUES), "values in a JSON file held in memory"),
    Variable("BYTEBOUND_MAX_ZIP_MEMBERS", str(DEFAULT_MAX_ZIP_MEMBERS), "files in a zip archive"),
    Variable(
        "BYTEBOUND_BACKGROUND_BYTES",
        str(DEFAULT_BACKGROUND_BYTES),
        "files above this size, unpacked, are read in a process of their own and answered with a job",
    ),
    Variable("BYTEBOUND_READERS", "1", "such processes at the same time; other large files wait"),
    Variable("BYTEBOUND_PUBLIC_URL", "none", "address under which readers reach the server; used in share links"),
    Variable("BYTEBOUND_TRUSTED_PROXIES", "none", "addresses or networks whose X-Forwarded-For is believed"),
    Variable("BYTEBOUND_UPLOADS_PER_MINUTE", "60", "uploads per client and minute; 0 switches the limit off"),
    Variable("BYTEBOUND_ESTIMATES_PER_MINUTE", "1200", "estimates per client and minute; 0 switches it off"),
    Variable("BYTEBOUND_SHARE_LOOKUPS_PER_MINUTE", "120", "opened share links per client and minute; 0: off"),
)


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Requests per client and minute; 0 means no limit."""

    uploads_per_minute: int = 60
    estimates_per_minute: int = 1200
    share_lookups_per_minute: int = 120


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment decides. `database_url` is None for the SQLite file in the data folder."""

    host: str = "127.0.0.1"
    port: int = 8000
    data_dir: Path = field(default_factory=lambda: Path("data").absolute())
    database_url: str | None = None
    max_upload_bytes: int = DEFAULT_MAX_UPLOAD_BYTES
    max_text_bytes: int = DEFAULT_MAX_TEXT_BYTES
    max_stream_bytes: int = DEFAULT_MAX_STREAM_BYTES
    max_json_values: int = DEFAULT_MAX_JSON_VALUES
    max_zip_members: int = DEFAULT_MAX_ZIP_MEMBERS
    background_bytes: int = DEFAULT_BACKGROUND_BYTES
    readers: int = 1
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    rate_limits: RateLimits = field(default_factory=RateLimits)

    @property
    def database_path(self) -> Path | None:
        """The SQLite file, or None where the database is a server."""
        if self.database_url is None:
            return self.data_dir / DATABASE_FILE_NAME
        if self.database_url.startswith(SQLITE_PREFIX):
            return Path(self.database_url.removeprefix(SQLITE_PREFIX)).absolute()
        return None

    @property
    def blob_dir(self) -> Path:
        """Folder of the uploaded files, each named by its SHA-256."""
        return self.data_dir / "blobs"

    @property
    def spool_dir(self) -> Path:
        """Folder of files that are arriving."""
        return self.data_dir / "spool"

    @property
    def public_origin(self) -> str | None:
        """Scheme, host and port of `public_url`: what a browser sends as Origin."""
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}"


def load_settings(
    environ: Mapping[str, str] | None = None, *, host: str | None = None, port: int | str | None = None
) -> Settings:
    """Read the settings from `environ` (the process's own by default); `host` and `port` override it.

    A variable that is empty counts as not set. Raises SettingsError, which names every variable that is wrong.
    """
    values = dict(os.environ if environ is None else environ)
    if host is not None:
        values["BYTEBOUND_HOST"] = host
    if port is not None:
        values["BYTEBOUND_PORT"] = str(port)
    reader = _Reader(values)
    settings = Settings(
        host=reader.text("BYTEBOUND_HOST") or "127.0.0.1",
        port=reader.whole("BYTEBOUND_PORT", 8000, least=0, most=65535),
        data_dir=Path(reader.text("BYTEBOUND_DATA_DIR") or "data").expanduser().absolute(),
        database_url=reader.database_url("BYTEBOUND_DATABASE_URL"),
        max_upload_bytes=reader.whole("BYTEBOUND_MAX_UPLOAD_BYTES", DEFAULT_MAX_UPLOAD_BYTES, 1, 2**40),
        max_text_bytes=reader.whole("BYTEBOUND_MAX_TEXT_BYTES", DEFAULT_MAX_TEXT_BYTES, 1, 2**40),
        max_stream_bytes=reader.whole("BYTEBOUND_MAX_STREAM_BYTES", DEFAULT_MAX_STREAM_BYTES, 1, 2**40),
        max_json_values=reader.whole("BYTEBOUND_MAX_JSON_VALUES", DEFAULT_MAX_JSON_VALUES, 1, 10**9),
        max_zip_members=reader.whole("BYTEBOUND_MAX_ZIP_MEMBERS", DEFAULT_MAX_ZIP_MEMBERS, 1, 10_000),
        background_bytes=reader.whole("BYTEBOUND_BACKGROUND_BYTES", DEFAULT_BACKGROUND_BYTES, 0, 2**40),
        readers=reader.whole("BYTEBOUND_READERS", 1, 1, 64),
        public_url=reader.public_url("BYTEBOUND_PUBLIC_URL"),
        trusted_proxies=reader.networks("BYTEBOUND_TRUSTED_PROXIES"),
        rate_limits=RateLimits(
            uploads_per_minute=reader.whole("BYTEBOUND_UPLOADS_PER_MINUTE", 60, 0, 1_000_000),
            estimates_per_minute=reader.whole("BYTEBOUND_ESTIMATES_PER_MINUTE", 1200, 0, 1_000_000),
            share_lookups_per_minute=reader.whole("BYTEBOUND_SHARE_LOOKUPS_PER_MINUTE", 120, 0, 1_000_000),
        ),
    )
    if reader.problems:
        raise SettingsError(tuple(reader.problems))
    return settings


class _Reader:
    """Collects problems instead of stopping at the first, so that one start shows all of them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.problems: list[str] = []

    def text(self, name: str) -> str | None:
        return self.environ.get(name, "").strip() or None

    def whole(self, name: str, default: int, least: int, most: int) -> int:
        written = self.text(name)
        if written is None:
            return default
        try:
            # int() also takes underscores and other scripts' digits; a port is written in plain ones.
            number = int(written) if written.isascii() and written.lstrip("-").isdigit() else None
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            self.problems.append(f"{name} must be a whole number from {least} to {most}, not {written!r}")
            return default
        return number

    def database_url(self, name: str) -> str | None:
        written = self.text(name)
        if written is None:
            return None
        if written.startswith("sqlite"):
            path = written.removeprefix(SQLITE_PREFIX)
            if path == written or path in ("", ":memory:") or "?" in path:
                # The address may hold a password only for a server, so a SQLite one can be shown.
                self.problems.append(
                    f"{name} must be sqlite:///FILE (four slashes for an absolute path), not {written!r}; "
                    "a database in memory is not supported"
                )
            return written
        if not written.startswith(("postgresql://", "postgresql+")):
            self.problems.append(f"{name} must start with sqlite:/// or postgresql+psycopg://")
        return written

    def public_url(self, name: str) -> str | None:
        written = self.text(name)
        if written is None:
            return None
        try:
            parts = urlsplit(written)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable or parts.query or parts.fragment or "@" in parts.netloc:
            self.problems.append(f"{name} must be an address like https://bytebound.example.org, not {written!r}")
            return None
        return f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"

    def networks(self, name: str) -> tuple[str, ...]:
        networks = []
        for written in (self.text(name) or "").replace(",", " ").split():
            try:
                networks.append(str(ipaddress.ip_network(written, strict=False)))
            except ValueError:
                self.problems.append(
                    f"{name} must list addresses or networks such as 10.0.0.0/8, separated by commas, not {written!r}"
                )
        return tuple(networks)
