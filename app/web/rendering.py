"""Templates to responses: one Jinja environment, whole pages or fragments, asset addresses, provenance for figures.

Routes call `page(...)`: it answers with the whole page, or with the page's fragment when htmx asks for one.
`fragment(...)` always answers with a fragment, `error(...)` with the error page or its fragment twin. Every answer
says on which request headers it depended (`Vary`), so that a cache never mixes a fragment with a page.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from app import __version__
from app.web import formatting
from app.web.tables import Cells

ROOT: Final = Path(__file__).resolve().parents[2]
TEMPLATES: Final = ROOT / "templates"
STATIC: Final = ROOT / "static"
STATIC_URL: Final = "/static"
MANIFEST: Final = STATIC / "vendor" / "manifest.json"
VARY: Final = "HX-Request, HX-Request-Type"


@dataclass(frozen=True, slots=True)
class Area:
    """One place of the top bar. `icon` names a symbol of templates/macros/icons.html."""

    id: str
    label: str
    url: str
    icon: str


AREAS: Final = (
    Area("explore", "Explore", "/explore", "roofline"),
    Area("memory", "Memory", "/memory", "memory"),
    Area("runs", "Runs", "/runs", "runs"),
    Area("compare", "Compare", "/comparisons", "compare"),
    Area("diagnose", "Diagnose", "/diagnose", "tree"),
    Area("library", "Library", "/library", "book"),
    Area("hardware", "Hardware", "/hardware", "chip"),
    Area("models", "Models", "/models", "layers"),
)
"""The areas that exist today, in the order of the top bar. A new area is one line here."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What can bind. The same order, label, short form and colour everywhere; `key` is also the API's word."""

    key: str
    label: str
    short: str


RESOURCES: Final = (
    Resource("compute", "Compute", "CMP"),
    Resource("hbm", "HBM", "HBM"),
    Resource("link-near", "Link, near", "NEAR"),
    Resource("link-far", "Link, far", "FAR"),
    Resource("launch", "Launch", "LCH"),
    Resource("sync", "Synchronisation", "SYN"),
    Resource("imbalance", "Imbalance", "IMB"),
    Resource("other", "Other", "OTH"),
)
_RESOURCE_ALIASES: Final = {
    "net": "link-near",
    "link": "link-near",
    "scale_up": "link-near",
    "link_near": "link-near",
    "scale_out": "link-far",
    "link_far": "link-far",
    "pcie": "link-far",
    "host": "link-far",
    "memory": "hbm",
}


def resource(key: str) -> Resource:
    """The resource called `key` by a page or the API; an unknown one is "other" under its own name."""
    wanted = _RESOURCE_ALIASES.get(key, key)
    for known in RESOURCES:
        if known.key == wanted:
            return Resource(known.key, "Network", "NET") if key == "net" else known
    return Resource("other", key.replace("_", " ").capitalize() or "Other", "OTH")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a figure comes from, as the figure macro shows it. `weak` kinds are flagged even in dense tables."""

    kind: str
    label: str
    detail: str = ""
    url: str = ""

    @property
    def weak(self) -> bool:
        return self.kind in ("assumed", "recalled", "secondary")

    @property
    def sentence(self) -> str:
        return f"{self.label}: {self.detail}" if self.detail else self.label


_KINDS: Final = {
    "cited": "cited",
    "primary": "cited",
    "measured": "measured",
    "entered": "entered",
    "assumed": "assumed",
    "computed": "computed",
    "derived": "computed",
    "recalled": "recalled",
    "secondary": "secondary",
}


def provenance(source: object) -> Provenance | None:
    """Any description of a source as one shape: None, a kind, a mapping or an object.

    Read from mappings and objects: `kind` (or `read`, the catalogue's word), and of `title`, `locator`, `note`,
    `reason`, `detail`, `date` whatever is there, in that order; `url` becomes a link when it is http(s) or local.
    A sequence is told by its first entry, with the others' addresses left to the page.
    """
    if source is None or isinstance(source, Provenance):
        return source
    if isinstance(source, str):
        return Provenance(_KINDS.get(source, "cited"), source)
    if isinstance(source, Sequence):
        return provenance(source[0]) if source else None

    def get(name: str) -> str:
        value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
        return "" if value is None else str(value)

    word = get("kind") or get("read") or "cited"
    kind = _KINDS.get(word, "cited")
    parts = [get(name) for name in ("title", "locator", "note", "reason", "detail", "date")]
    url = get("url")
    safe = url if url.startswith(("https://", "http://", "/")) else ""
    return Provenance(kind, kind, ", ".join(part for part in parts if part) or (safe if safe != "" else ""), safe)


def page(
    request: Request,
    template: str,
    context: Mapping[str, Any] | None = None,
    status: int = 200,
    *,
    part: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """`templates/pages/<template>`, or `templates/parts/<part>` when htmx asks for a fragment and one is named."""
    wanted = f"parts/{part}" if part and wants_fragment(request) else f"pages/{template}"
    return _respond(request, wanted, context, status, headers)


def fragment(
    request: Request,
    template: str,
    context: Mapping[str, Any] | None = None,
    status: int = 200,
    *,
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """`templates/parts/<template>` on its own, whoever asks."""
    return _respond(request, f"parts/{template}", context, status, headers)


def error(
    request: Request,
    status: int,
    title: str,
    detail: str,
    *,
    hints: Sequence[str] = (),
    request_id: str = "",
    headers: Mapping[str, str] | None = None,
) -> HTMLResponse:
    """The error page, or its fragment: htmx swaps error answers too, so a page must never land inside a card."""
    context = {"status": status, "title": title, "detail": detail, "hints": hints, "request_id": request_id}
    return page(request, "error.html", context, status, part="error.html", headers=headers)


def wants_fragment(request: Request) -> bool:
    """Whether htmx asks for a part: it says so itself, and asks for a full page when it would swap the body."""
    asks = request.headers.get("HX-Request") == "true"
    return asks and request.headers.get("HX-Request-Type", "partial") != "full"


def asset(path: str) -> str:
    """Address of a file under static/, with a hash of its content, so that it can be cached for ever."""
    file = STATIC / path
    stat = file.stat()
    return f"{STATIC_URL}/{path}?v={_digest(file, stat.st_mtime_ns, stat.st_size)}"


def vendor(name: str) -> str:
    """Address of a vendored file by its logical name (`htmx.js`, `plotly.js`); the file name carries the version."""
    return f"{STATIC_URL}/vendor/{_manifest(MANIFEST.stat().st_mtime_ns)[name]}"


def query(base: str, **values: Any) -> str:
    """`base` with `values` as its query; None and empty values are left out, lists are repeated."""
    kept = {key: value for key, value in values.items() if value not in (None, "", [], ())}
    return f"{base}?{urlencode(kept, doseq=True)}" if kept else base


def document_name(url: str) -> str:
    """An address as a reader recognises it: the site, or the repository, and the last part of the path."""
    parts = urlsplit(url)
    steps = [unquote(step) for step in parts.path.split("/") if step]
    site = (parts.hostname or url).removeprefix("www.")
    if site == "github.com" and len(steps) >= 2:
        site, steps = "/".join(steps[:2]), steps[4:]
    return f"{site}: {steps[-1]}"[:90] if steps else site[:90]


FORMULA = re.compile(r"\b(F-(\d+))(\.\d+)?\b")


def formula_links(text: str) -> Markup:
    """`text` with its formula numbers (F-9.3) as links to where the library states them."""
    return Markup(FORMULA.sub(r'<a href="/library/formulas#\1">\g<0></a>', str(escape(text))))


def data_block(value: object) -> Markup:
    """`value` as JSON that may stand inside <script type="application/json">: nothing in it can end the element.

    Non-finite numbers become null, as in the API.
    """
    text = _json(value)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def attribute_json(value: object) -> str:
    """`value` as JSON for an attribute; the template escapes it like any other text."""
    return _json(value)


def chart_spec(spec: object) -> dict[str, Any]:
    """`data`, `layout` and `meta` of a mapping or of an object with such attributes."""
    if isinstance(spec, Mapping):
        return {key: spec[key] for key in ("data", "layout", "meta") if spec.get(key)}
    return {key: value for key in ("data", "layout", "meta") if (value := getattr(spec, key, None))}


def column_scales(columns: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Any]]) -> list[formatting.Scale | None]:
    """For each column with a `unit`, the one unit its cells are printed in (see macros/table.html)."""
    scales: list[formatting.Scale | None] = []
    for index, column in enumerate(columns):
        unit = column.get("unit")
        if not unit:
            scales.append(None)
            continue
        cells = [row[index] for row in rows]
        values = [
            cell if type(cell) is float else cell.get("value") if isinstance(cell, Mapping) else cell for cell in cells
        ]
        scales.append(formatting.scale_for(values, unit, decimal=bool(column.get("decimal"))))
    return scales


@lru_cache(maxsize=256)
def _digest(file: Path, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


@lru_cache(maxsize=4)
def _manifest(mtime_ns: int) -> dict[str, str]:
    names: dict[str, str] = json.loads(MANIFEST.read_text(encoding="utf-8"))
    return names


def _json(value: object) -> str:
    """Compact JSON. Most values are plain already; only those with a number that JSON lacks are copied first."""
    try:
        return _encode(value)
    except ValueError:
        return _encode(_plain(value))


def _encode(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> Any:
    """Containers and numbers of other kinds (tuples, mappings, NumPy scalars and arrays) as JSON has them."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    tolist = getattr(value, "tolist", None)
    if tolist is not None:
        return _plain(tolist())
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    raise TypeError(f"cannot be written as JSON: {type(value).__name__}")


def _respond(
    request: Request,
    template: str,
    context: Mapping[str, Any] | None,
    status: int,
    headers: Mapping[str, str] | None,
) -> HTMLResponse:
    html = environment().get_template(template).render({**(context or {}), "request": request})
    response = HTMLResponse(html, status_code=status, headers=dict(headers or {}))
    before = response.headers.get("Vary")
    response.headers["Vary"] = f"{before}, {VARY}" if before else VARY
    return response


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one Jinja environment: everything is escaped, and a missing variable is an error, not an empty string."""
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        quantity=formatting.quantity,
        percent=formatting.percent,
        signed_percent=formatting.signed_percent,
        short_count=formatting.short_count,
        whole_count=formatting.whole_count,
        times=formatting.times,
        count=formatting.count,
        significant=formatting.significant,
        when=formatting.when,
        when_stated=formatting.when_stated,
        data_block=data_block,
        attribute_json=attribute_json,
        chart_spec=chart_spec,
        provenance=provenance,
        resource=resource,
        document_name=document_name,
        formula_links=formula_links,
        path_segment=lambda text: quote(str(text), safe=""),
    )
    env.tests["a_default"] = lambda note: " was not given: " in note
    cells = Cells(env, provenance)
    env.globals.update(
        areas=AREAS,
        resources=RESOURCES,
        version=__version__,
        asset=asset,
        vendor=vendor,
        query=query,
        scale_for=formatting.scale_for,
        column_scales=column_scales,
        figure_markup=cells.figure,
        table_rows=cells.rows,
        not_reported=formatting.NOT_REPORTED,
    )
    return env


def redirect(request: Request, url: str) -> Response:
    """A 303 for browsers; htmx and the drop zone are told in a header, so that they load the page themselves."""
    if wants_fragment(request):
        return Response(status_code=200, headers={"HX-Redirect": url, "Vary": VARY})
    return RedirectResponse(url, status_code=303)
