"""The `bytebound` command: serve, migrate, backup, restore, import, check, export, catalog-lint, version.

What a person can put right (a setting, a path, a port, a file) is one line on standard error and exit code 2; exit code
1 means that the command ran and something it checked or read was refused.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import platform
import re
import secrets
import socket
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from app import __version__
from app.catalog.loader import AmbiguousName, Catalog, CatalogError, UnknownName, catalog_errors, load_catalog
from app.domain.errors import DomainError
from app.probe import bytebound_probe
from app.settings import VARIABLES, Settings, SettingsError, load_settings
from app.storage import backup as backups
from app.storage import export as exports
from app.storage import migrate
from app.storage.errors import StorageError
from app.storage.store import Storage, opened_storage, prepare_folder

OK, REFUSED, USAGE = 0, 1, 2


class CommandError(Exception):
    """A command cannot go on; the message is the one line that its user sees."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        settings = load_settings(host=getattr(arguments, "host", None), port=getattr(arguments, "port", None))
        return int(arguments.command(settings, arguments))
    except SettingsError as error:
        for problem in error.problems:
            print(f"bytebound: {problem}", file=sys.stderr)
        return USAGE
    except (CommandError, StorageError) as error:
        print(f"bytebound: {error}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:
        # The reader of our output has left (`| head`); nothing more can be said to it, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return REFUSED
    except KeyboardInterrupt:
        return 130


# ---- commands ----


def serve(settings: Settings, arguments: argparse.Namespace) -> int:
    """Migrate, load the catalogue, and serve until interrupted."""
    prepare_folder(settings.data_dir)
    # Bound before anything is changed, so that a second server on the same port stops here.
    listening = _bound_socket(settings)
    with contextlib.closing(listening):
        _migrate(settings)
        _offer_examples(settings)
        import uvicorn

        port = listening.getsockname()[1]
        if arguments.reload:
            listening.close()
            # The reloading process reads its settings from the environment again.
            os.environ.update(BYTEBOUND_HOST=settings.host, BYTEBOUND_PORT=str(port))
            uvicorn.run(
                "app.main:create_app",
                factory=True,
                host=settings.host,
                port=port,
                reload=True,
                reload_dirs=[str(Path(__file__).parent)],
                proxy_headers=False,
            )
            return OK
        from app.main import create_app

        server = uvicorn.Server(
            uvicorn.Config(
                create_app(settings),
                # The app itself decides which proxies it believes; uvicorn would believe any program on this machine.
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=10,
            )
        )
        logging.getLogger("uvicorn.access").addFilter(_without_tokens)
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        print(f"Bytebound {__version__} on http://{shown}:{port}  (data in {settings.data_dir})", flush=True)
        # Catalogue, routes and schemas live as long as the process: a full collection need not look at all of them each
        # time, for 100 ms in the middle of somebody's answer.
        gc.collect()
        gc.freeze()
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        return OK if server.started else REFUSED


def _offer_examples(settings: Settings) -> None:
    """Give an empty database its example, the first time that it is served."""
    from app.services.context import Context
    from app.services.examples import offer_examples

    with opened_storage(settings) as storage:
        offer_examples(Context(settings=settings, catalog=_load_catalog(), storage=storage))


def migrate_database(settings: Settings, _arguments: argparse.Namespace) -> int:
    """Bring the database to this version's tables."""
    prepare_folder(settings.data_dir)
    before = _migrate(settings)
    if before.is_current:
        print(f"nothing to do: the database has revision {before.head}")
    else:
        print(f"migrated the database from revision {before.revision or 'none'} to {before.head}")
    return OK


def back_up(settings: Settings, arguments: argparse.Namespace) -> int:
    """Write one file with the database and all uploads."""
    report = backups.backup(settings, arguments.file)
    print(f"wrote {report.path}: {_counts(report)}, {report.size_bytes} bytes")
    return OK


def restore(settings: Settings, arguments: argparse.Namespace) -> int:
    """Put a backup's contents into the data folder."""
    report = backups.restore(settings, arguments.file, force=arguments.force)
    _migrate(settings)
    print(f"restored {arguments.file} into {settings.data_dir}: {_counts(report)}")
    if report.kept_aside is not None:
        print(f"what was there before is in {report.kept_aside}")
    return OK


def import_files(settings: Settings, arguments: argparse.Namespace) -> int:
    """Read benchmark files as uploads do; files that are refused do not stop the others."""
    from app.importers.base import UnreadableUpload
    from app.services.context import Context
    from app.services.upload_run import upload_file

    refused = 0
    catalog = _load_catalog()
    with _current_storage(settings) as storage:
        context = Context(settings=settings, catalog=catalog, storage=storage)
        for path in arguments.files:
            try:
                stored = upload_file(
                    context,
                    _readable(path, settings.max_upload_bytes),
                    path.name,
                    hardware=arguments.hardware,
                    model=arguments.model,
                    name=arguments.name,
                    tags=arguments.tag,
                )
            except (CommandError, UnreadableUpload, UnknownName, AmbiguousName, DomainError, StorageError) as error:
                refused += 1
                print(f"bytebound: {path}: {error}", file=sys.stderr)
                continue
            news = "" if stored.created else " (stored already)"
            runs = ", ".join(f"{run.id} {run.name}" for run in stored.runs)
            print(f"{path}: {stored.upload.format}{news}: {runs}")
    return REFUSED if refused else OK


def probe(_settings: Settings, arguments: argparse.Namespace) -> int:
    """Measure this machine, as the downloaded probe does."""
    return bytebound_probe.measure(arguments)


def check(settings: Settings, arguments: argparse.Namespace) -> int:
    """Hold runs against their baseline, in a server's or the local database; a file is uploaded first."""
    from app.services import gate

    try:
        rules = [gate.parse_rule(text) for text in arguments.rule]
    except ValueError as error:
        raise CommandError(str(error)) from None
    about = {"hardware": arguments.hardware, "model": arguments.model, "tags": ",".join(arguments.tag) or None}
    try:
        with contextlib.ExitStack() as stack:
            checker: gate.Gate
            if arguments.url:
                checker = gate.RemoteGate(arguments.url)
            else:
                from app.services.context import Context

                storage = stack.enter_context(_current_storage(settings))
                checker = gate.LocalGate(Context(settings=settings, catalog=_load_catalog(), storage=storage))
            answers = gate.check_all(
                checker, arguments.run, arguments.baseline, rules, last=arguments.last, about=about
            )
    except gate.GateError as error:
        raise CommandError(str(error)) from None
    if arguments.json:
        print(json.dumps(answers, allow_nan=False))
    else:
        for line in gate.report(answers):
            print(line)
    return OK if all(answer["passed"] for answer in answers) else REFUSED


def export(settings: Settings, arguments: argparse.Namespace) -> int:
    """Write what is stored as JSON lines, without the uploaded files."""
    with _current_storage(settings) as storage:
        if arguments.output is None or str(arguments.output) == "-":
            _write_export(storage, sys.stdout)
            sys.stdout.flush()
            return OK
        with _new_file(arguments.output) as file:
            lines = _write_export(storage, file)
    print(f"wrote {arguments.output}: {lines} lines")
    return OK


def lint_catalog(_settings: Settings, _arguments: argparse.Namespace) -> int:
    """Read every entry of the catalogue, and name every one that is broken."""
    errors = catalog_errors()
    for error in errors:
        print(f"bytebound: {error}", file=sys.stderr)
    if errors:
        return REFUSED
    catalog = _load_catalog()
    print(f"{len(catalog.hardware)} hardware profiles and {len(catalog.models)} models, all valid")
    return OK


def show_version(_settings: Settings, _arguments: argparse.Namespace) -> int:
    """Versions that matter in a report."""
    print(
        f"bytebound {__version__} (database revision {migrate.head_revision()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version})"
    )
    return OK


# ---- parts of them ----


def _migrate(settings: Settings) -> migrate.SchemaState:
    with opened_storage(settings) as storage:
        return migrate.upgrade(storage.engine)


@contextlib.contextmanager
def _current_storage(settings: Settings) -> Iterator[Storage]:
    with opened_storage(settings) as storage:
        migrate.upgrade(storage.engine)
        yield storage


def _load_catalog() -> Catalog:

    try:
        return load_catalog()
    except CatalogError as error:
        raise CommandError(f"the catalogue cannot be loaded: {error}") from error


_TOKEN_IN_PATH = re.compile(r"(/s/|/shares/|/checklist-shares/)[^/?\s]+")


def _without_tokens(record: logging.LogRecord) -> bool:
    """Whoever reads the log must not be able to open what others shared, so tokens are left out of it."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            _TOKEN_IN_PATH.sub(r"\1...", value) if isinstance(value, str) else value for value in record.args
        )
    return True


def _bound_socket(settings: Settings) -> socket.socket:
    where = f"{settings.host} port {settings.port}"
    try:
        families = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise CommandError(f"BYTEBOUND_HOST {settings.host!r} is not an address of this machine: {error}") from error
    family, kind, protocol, _name, address = families[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # On Windows this option would let two servers share the port.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # Without listening, a second server could still bind to the port on some systems.
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise CommandError(
            f"cannot listen on {where}: {error.strerror or error}; choose another port with --port or BYTEBOUND_PORT"
        ) from error
    return listening


def _readable(path: Path, most: int) -> Path:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.read(1)
    except OSError as error:
        raise CommandError(f"cannot be read: {error.strerror or error}") from error
    if size > most:
        raise CommandError(f"larger than {most} bytes (BYTEBOUND_MAX_UPLOAD_BYTES)")
    return path


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    """A file that has its name only when it is complete, and never replaces another."""
    if os.path.lexists(path):
        raise CommandError(f"{path} exists already: choose another name")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            yield file
        os.rename(temporary, path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_export(storage: Storage, file: IO[str]) -> int:
    lines = 0
    with storage.read() as session:
        for item in exports.exported_items(session=session, app_version=__version__):
            file.write(json.dumps(item, allow_nan=False) + "\n")
            lines += 1
    return lines


def _counts(report: backups.BackupReport) -> str:
    return ", ".join(
        f"{number} {noun}{'' if number == 1 else 's'}"
        for number, noun in ((report.uploads, "upload"), (report.runs, "run"), (report.comparisons, "comparison"))
    )


def _parser() -> argparse.ArgumentParser:
    width = max(len(variable.name) for variable in VARIABLES)
    lines = (f"  {v.name:{width}}  {v.meaning} (default: {v.default})" for v in VARIABLES)
    parser = argparse.ArgumentParser(
        prog="bytebound",
        description="Performance bounds and measurements for machine-learning workloads.",
        epilog="settings, from the environment:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        added.set_defaults(command=command)
        return added

    command = add("serve", serve, "migrate the database, load the catalogue and serve")
    command.add_argument("--host", help="address to listen on (over BYTEBOUND_HOST)")
    command.add_argument("--port", help="port to listen on (over BYTEBOUND_PORT)")
    command.add_argument("--reload", action="store_true", help="for developers: start anew when code changes")

    add("migrate", migrate_database, "bring the database to this version's tables")

    command = add("backup", back_up, "write the database and all uploads into one file, while the server runs")
    command.add_argument("file", type=Path, metavar="FILE", help="a new file; an existing one is never overwritten")

    command = add("restore", restore, "put a backup into the data folder (stop the server first)")
    command.add_argument("file", type=Path, metavar="FILE")
    command.add_argument("--force", action="store_true", help="move what the data folder holds aside")

    command = add("probe", probe, "measure this machine with PyTorch and write a run")
    bytebound_probe.add_arguments(command)

    command = add("import", import_files, "store benchmark files, as an upload does")
    command.add_argument("files", nargs="+", type=Path, metavar="FILE")
    command.add_argument("--hardware", help="hardware profile to link the runs to")
    command.add_argument("--model", help="model to link the runs to")
    command.add_argument("--name", help="name of the runs, instead of the file's own")
    command.add_argument("--tag", action="append", default=[], help="tag for the runs; may be repeated")

    command = add("check", check, "hold a run, or a file's runs, against a baseline: exit status 0 passes, 1 fails")
    command.add_argument("run", metavar="RUN_OR_FILE", help="a run's id, or a benchmark file, which is uploaded first")
    command.add_argument("--url", help="a server's address; without it the local database is asked")
    command.add_argument(
        "--baseline", help="a run's id, or \"series\" for its history (default: the run's own baseline, else series)"
    )
    command.add_argument("--last", type=int, default=5, help="runs of the history that stand for an unmarked baseline")
    command.add_argument(
        "--rule",
        action="append",
        default=[],
        required=True,
        metavar="METRIC=LIMIT",
        help="how much worse a metric may be, such as tpot_s.p99=5%%; may be repeated",
    )
    command.add_argument("--hardware", help="hardware profile to link an uploaded file's runs to")
    command.add_argument("--model", help="model to link an uploaded file's runs to")
    command.add_argument("--tag", action="append", default=[], help="tag for an uploaded file's runs; may be repeated")
    command.add_argument("--json", action="store_true", help="print the answers as JSON")

    command = add("export", export, "write everything but the uploaded files as JSON lines")
    command.add_argument("--output", type=Path, metavar="FILE", help="a new file; standard output without it")

    add("catalog-lint", lint_catalog, "check every entry of the shipped catalogue")
    add("version", show_version, "show versions")
    return parser


if __name__ == "__main__":
    sys.exit(main())
