"""What the pages and exports of a frozen comparison show, made from its snapshot alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import Request, Response

from app.charts.comparison import comparison_bars, static_bars
from app.services import compare
from app.services.compare_pages import PAGES
from app.services.context import Context
from app.storage.records import StoredComparison
from app.web import formatting, rendering
from app.web.frozen_links import PAGE_NAMES, page_address

SHARE_HEADERS: Final[Mapping[str, str]] = {
    "X-Robots-Tag": "noindex, nofollow, noarchive",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "private, no-store",
}
"""A link is a secret: nobody indexes it, no other site learns it, and no cache keeps what it opened."""

BOOK_WORDS: Final = {
    "kernel": "Kernel",
    "communication": "Communication",
    "runtime": "Runtime",
    "algorithmic": "Algorithmic",
}
VERDICT_BADGES: Final = {
    "better": "good",
    "worse": "bad",
    "contradiction": "bad",
    "of_bound": "info",
    "refused": "neutral",
}
MAIN_STATS: Final = (None, "mean", "p50", "p90", "p95", "p99")


def public_base(request: Request, ctx: Context) -> str:
    """Scheme, host and path under which readers reach the server."""
    return ctx.settings.public_url or str(request.base_url).rstrip("/")


def view(snapshot: Mapping[str, Any], baseline: int, metric: str | None = None) -> dict[str, Any]:
    """The context of the comparison's body: tables, chart and items. An unknown metric falls back to the headline."""
    items = snapshot["items"]
    rows = snapshot["metrics"]
    by_key = {row["metric"]: row for row in rows}
    chosen = metric if metric in by_key else snapshot["headline"]
    row = by_key.get(chosen) if chosen else None
    results, load, alone = _split(rows, len(items))
    return {
        "snapshot": snapshot,
        "items": items,
        "baseline": baseline,
        "metric": chosen,
        "metric_options": metric_options(rows),
        "result_rows": results,
        "load_rows": load,
        "lone_rows": alone,
        "ledger": snapshot["ledger"],
        "differences": differences_table(snapshot),
        "book_words": BOOK_WORDS,
        "verdict_badges": VERDICT_BADGES,
        "chart": None
        if row is None
        else comparison_bars(items, row, baseline=baseline, title=chart_title(items, row, baseline)),
        "page_links": {item["index"]: page_address(item) for item in items if item["kind"] == "estimate"},
        "page_names": PAGE_NAMES,
    }


def _split(rows: Sequence[Mapping[str, Any]], count: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Results that several items report, what describes the load, and what only one item has."""
    shared = [row for row in rows if count == 1 or sum(cell is not None for cell in row["cells"]) > 1]
    results = [row for row in shared if row["better"] and row["stat"] in MAIN_STATS]
    load = [row for row in shared if row not in results]
    return results, load, [row for row in rows if row not in shared]


def metric_options(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Metrics that the chart can show: those that more than one item reports, else all."""
    several = [row for row in rows if sum(cell is not None for cell in row["cells"]) > 1] or list(rows)
    return [(row["metric"], row["label"][:1].upper() + row["label"][1:]) for row in several]


def chart_title(items: Sequence[Mapping[str, Any]], row: Mapping[str, Any], baseline: int) -> str:
    """The finding of the chart in words: the best item and its ratio."""
    name = row["label"][:1].upper() + row["label"][1:]
    judged = [
        (item, cell)
        for number, (item, cell) in enumerate(zip(items, row["cells"], strict=True))
        if cell is not None and number != baseline and cell["verdict"] in ("better", "worse", "same")
    ]
    reached = [
        (item, cell) for item, cell in zip(items, row["cells"], strict=True) if cell is not None and cell["of_bound"]
    ]
    if not judged and reached:
        item, cell = reached[0]
        mine, base = _short(item["label"], 60), _short(items[baseline]["label"], 60)
        measured, floor = (mine, base) if cell["kind"] == "measured" else (base, mine)
        return f"{name}: {measured} reaches {formatting.percent(cell['of_bound'])} of {floor}"
    if not judged or row["better"] is None:
        return name
    item, cell = (max if row["better"] == "higher" else min)(judged, key=lambda pair: pair[1]["value"])
    return f"{name}: {_short(item['label'], 80)} at {cell['words']}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def differences_table(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between the items, a column for each."""
    return {
        "columns": [
            {"label": "What", "head": True},
            *({"label": _short(item["label"], 40), "title": item["label"], "wrap": True} for item in snapshot["items"]),
        ],
        "rows": [
            [
                d["label"][:1].upper() + d["label"][1:],
                *(v if v is not None else {"text": "not stated"} for v in d["values"]),
            ]
            for d in snapshot["differences"]
        ],
    }


# ---- exports --------------------------------------------------------------------------------------------------------

MEDIA_TYPES: Final = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "html": "text/html; charset=utf-8",
}


def download(stored: StoredComparison, format_: str) -> Response:
    """The comparison as a file, which a browser saves and never runs as a page of this site."""
    write = {"csv": compare.export_csv, "json": compare.export_json, "html": export_html}[format_]
    return Response(
        write(stored).encode("utf-8", "replace"),
        media_type=MEDIA_TYPES[format_],
        headers={
            "Content-Disposition": f'attachment; filename="{compare.file_stem(stored.title)}.{format_}"',
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        },
    )


def export_html(stored: StoredComparison) -> str:
    """One file that opens without a network: tables, and bars drawn as plain SVG."""
    context = view(stored.snapshot, stored.baseline)
    rows = {row["metric"]: row for row in stored.snapshot["metrics"]}
    row = rows.get(stored.snapshot["headline"])
    bars = [] if row is None else static_bars(context["items"], row, stored.baseline)
    template = rendering.environment().get_template("pages/comparison_export.html")
    return template.render({**context, "comparison": stored, "bars": bars, "bar_row": row, "question_words": PAGES})
