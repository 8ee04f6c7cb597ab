"""The example that an empty product starts with: real measurements, marked as such, gone for good once removed."""

from __future__ import annotations

from importlib import resources

from app.services.context import Context
from app.services.upload_run import UploadOutcome, upload_file
from app.storage import runs
from app.storage.records import RunFilter

EXAMPLE_FILE = "llama-3.1-8b-decode-h200.json"
MARKER = "examples-offered"
"""A file of this name in the data folder says that the example was offered once; it is never offered again."""


def offer_examples(ctx: Context) -> UploadOutcome | None:
    """Load the example into a database without runs, the first time only. None where nothing was loaded."""
    marker = ctx.settings.data_dir / MARKER
    if marker.exists():
        return None
    with ctx.storage.read() as session:
        empty = runs.count_runs(session=session) == 0
    outcome = None
    if empty:
        data = (resources.files("app.catalog") / "data" / "examples" / EXAMPLE_FILE).read_bytes()
        outcome = upload_file(
            ctx, data, EXAMPLE_FILE, hardware="nvidia-h200-sxm", model="llama-3.1-8b", is_example=True
        )
    marker.write_text("The example run was offered here; without this file an empty database gets it again.\n")
    return outcome


def remove_examples(ctx: Context) -> int:
    """Delete every example run; the number of runs deleted."""
    removed = 0
    while True:
        with ctx.storage.read() as session:
            page = runs.list_runs(session=session, filters=RunFilter(is_example=True), limit=200)
        if not page.items:
            return removed
        with ctx.storage.write() as session:
            for run in page.items:
                runs.delete_run(session=session, blobs=ctx.storage.blobs, run_id=run.id)
        removed += len(page.items)
