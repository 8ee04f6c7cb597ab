"""The examples that an empty product starts with: real measurements, marked as such, gone for good once removed."""

from __future__ import annotations

from importlib import resources

from app.services.context import Context
from app.services.upload_run import upload_file
from app.storage import runs
from app.storage.records import RunFilter, StoredRun

EXAMPLES = (
    ("probe-h200-two-devices.json", "nvidia-h200-sxm", None),
    ("llama-3.1-8b-decode-h200.json", "nvidia-h200-sxm", "llama-3.1-8b"),
)
"""Files with the device and the model they are linked to. Lists show the last one first."""
MARKER = "examples-offered"
"""A file of this name in the data folder says that the examples were offered once; they are never offered again."""


def offer_examples(ctx: Context) -> list[StoredRun]:
    """Load the examples into a database without runs, the first time only. The runs that were loaded."""
    marker = ctx.settings.data_dir / MARKER
    if marker.exists():
        return []
    with ctx.storage.read() as session:
        empty = runs.count_runs(session=session) == 0
    loaded: list[StoredRun] = []
    if empty:
        folder = resources.files("app.catalog") / "data" / "examples"
        for name, hardware, model in EXAMPLES:
            data = (folder / name).read_bytes()
            loaded += upload_file(ctx, data, name, hardware=hardware, model=model, is_example=True).runs
    marker.write_text("The example runs were offered here; without this file an empty database gets them again.\n")
    return loaded


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
