"""Templates to responses, and what the macros make of values that nobody chose kindly."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser

import numpy as np
import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from jinja2 import UndefinedError

from app import __version__
from app.web import rendering
from app.web.formatting import quantity

HOSTILE = "<script>alert(1)</script>\"'&"


def render(template: str, /, **context: object) -> str:
    return rendering.environment().from_string(template).render(**context)


class Elements(HTMLParser):
    """Tags with their attributes, and the text outside scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()

    @app.get("/missing")
    def missing(request: Request):
        return rendering.error(request, 404, "No such run", HOSTILE, hints=["Look in the list"], request_id="q-1")

    return TestClient(app)


# ---- responses ----


def test_a_browser_gets_the_whole_page(client: TestClient) -> None:
    answer = client.get("/missing")
    assert answer.status_code == 404
    assert answer.text.lstrip().lower().startswith("<!doctype html>")
    assert answer.headers["vary"] == "HX-Request, HX-Request-Type"
    page = Elements(answer.text)
    assert len(page.all("h1")) == 1
    assert HOSTILE not in answer.text
    assert "Look in the list" in answer.text
    assert "q-1" in answer.text


def test_htmx_gets_the_fragment_twin(client: TestClient) -> None:
    answer = client.get("/missing", headers={"HX-Request": "true", "HX-Request-Type": "partial"})
    assert answer.status_code == 404
    assert "<html" not in answer.text
    assert 'role="alert"' in answer.text
    assert "Look in the list" in answer.text
    assert HOSTILE not in answer.text
    assert answer.headers["vary"] == "HX-Request, HX-Request-Type"


def test_htmx_gets_the_page_when_it_would_swap_the_body(client: TestClient) -> None:
    answer = client.get("/missing", headers={"HX-Request": "true", "HX-Request-Type": "full"})
    assert "<html" in answer.text


def test_the_frame_keeps_to_the_policy_and_to_this_server(client: TestClient) -> None:
    page = Elements(client.get("/missing").text)
    for script in page.all("script"):
        assert script.get("src", "").startswith("/static/"), script
    for link in page.all("link"):
        assert (link["href"] or "").startswith("/static/")
    for _, attributes in page.found:
        assert not [name for name in attributes if name.startswith(("on", "hx-on"))]
    assert 'lang="en"' in client.get("/missing").text
    assert f"Bytebound {__version__}" in client.get("/missing").text


def test_plotly_is_loaded_only_where_a_chart_may_be() -> None:
    bare = "{% extends 'layout.html' %}{% block title %}x{% endblock %}"
    assert "plotly" not in render(bare)
    assert "plotly" in render(bare + "{% block charts %}yes{% endblock %}")


def test_the_current_area_is_marked_once() -> None:
    html = render("{% extends 'layout.html' %}{% block area %}runs{% endblock %}")
    current = [a for a in Elements(html).all("a") if a.get("aria-current")]
    assert [a["href"] for a in current] == ["/runs"]


def test_a_shared_page_has_no_controls() -> None:
    html = render("{% extends 'layout.html' %}{% block frame %}bare{% endblock %}")
    assert "data-tray" not in html
    assert 'role="search"' not in html


def test_a_missing_variable_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("{{ missing }}")


# ---- assets ----


def test_an_asset_address_follows_the_content() -> None:
    address = rendering.asset("css/tokens.css")
    assert re.fullmatch(r"/static/css/tokens\.css\?v=[0-9a-f]{12}", address)
    assert address != rendering.asset("css/app.css").replace("app", "tokens")


def test_vendored_files_carry_their_version_in_the_name() -> None:
    assert re.fullmatch(r"/static/vendor/htmx-\d+\.\d+\.\d+\.min\.js", rendering.vendor("htmx.js"))
    assert re.fullmatch(r"/static/vendor/plotly-cartesian-\d+\.\d+\.\d+\.min\.js", rendering.vendor("plotly.js"))


# ---- data in markup ----


def test_a_data_block_cannot_be_left_by_its_content() -> None:
    block = str(rendering.data_block({"name": "</script><script>alert(1)</script>\u2028<!--"}))
    assert not re.search(r"[<>&\u2028]", block)
    assert json.loads(block)["name"].startswith("</script>")


def test_a_data_block_holds_only_what_json_has() -> None:
    value = {"a": (1, 2.5), "nan": float("nan"), "inf": [float("inf")], "np": np.array([1.0, np.nan]), 3: np.int64(4)}
    assert json.loads(str(rendering.data_block(value))) == {
        "a": [1, 2.5],
        "nan": None,
        "inf": [None],
        "np": [1.0, None],
        "3": 4,
    }
    with pytest.raises(TypeError):
        rendering.data_block(object())


def test_a_query_leaves_out_what_is_empty() -> None:
    assert rendering.query("/runs", q="a b&c", tag=["x", "y"], sort=None, page="") == "/runs?q=a+b%26c&tag=x&tag=y"
    assert rendering.query("/runs") == "/runs"


# ---- provenance ----


@dataclass(frozen=True)
class Source:
    read: str
    url: str | None = None
    note: str | None = None


def test_sources_of_any_shape_are_told_alike() -> None:
    assert rendering.provenance(None) is None
    assert rendering.provenance([]) is None
    told = rendering.provenance({"kind": "cited", "title": "Datasheet", "locator": "p. 2", "url": "https://x.org"})
    assert told == rendering.Provenance("cited", "cited", "Datasheet, p. 2", "https://x.org")
    from_catalogue = rendering.provenance(Source("primary", "https://x.org/h100", "table 1"))
    assert from_catalogue == rendering.Provenance("cited", "cited", "table 1", "https://x.org/h100")
    assert rendering.provenance(Source("recalled")).weak
    assert rendering.provenance("measured").kind == "measured"


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "JAVASCRIPT:x", "ftp://x"])
def test_only_web_addresses_become_links(url: str) -> None:
    assert rendering.provenance({"kind": "cited", "url": url}).url == ""


# ---- macros ----

FIGURE = '{% from "macros/figure.html" import figure %}'
TABLE = '{% from "macros/table.html" import table %}'
FIELD = '{% from "macros/field.html" import field, choice %}'
CHART = '{% from "macros/chart.html" import chart %}'
UI = '{% import "macros/ui.html" as ui %}'


def test_a_figure_shows_value_exact_value_and_source() -> None:
    html = render(
        FIGURE + "{{ figure(0.0147, 's', source, badge=true) }}", source={"kind": "measured", "title": HOSTILE}
    )
    span = Elements(html).all("span")[0]
    assert span["data-exact"] == "0.0147 s"
    assert span["data-origin"] == f"measured: {HOSTILE}"
    assert span["tabindex"] == "0"
    assert "14.7\u202fms" in html
    assert "badge-source-measured" in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("kind", "shown"), [("cited", False), ("assumed", True), ("recalled", True), ("secondary", True)]
)
def test_weak_sources_are_flagged_by_themselves(kind: str, shown: bool) -> None:
    assert ("badge-source" in render(FIGURE + "{{ figure(1.5, 's', kind) }}", kind=kind)) is shown


@pytest.mark.parametrize("value", [None, float("nan")])
def test_an_absent_figure_says_so(value: float | None) -> None:
    html = render(FIGURE + "{{ figure(value, 's') }}", value=value)
    assert "not reported" in html
    assert "nan" not in html.lower()


def test_a_table_puts_one_unit_into_the_header_and_si_values_beside_the_cells() -> None:
    html = render(
        TABLE + "{{ table(columns, rows, caption='Steps') }}",
        columns=[{"label": "Name"}, {"label": "Time", "unit": "s"}, {"label": "Binds"}],
        rows=[[HOSTILE, 0.0147, {"resource": "hbm"}], ["b", None, {"text": "x", "href": "/runs/1"}]],
    )
    page = Elements(html)
    assert "<script" not in html
    assert [t.get("data-unit") for t in page.all("th")][:3] == [None, "s", None]
    assert '<span class="unit">ms</span>' in html
    assert [t["data-value"] for t in page.all("td") if "data-value" in t] == ["0.0147"]
    assert "14.7" in html
    assert "14.7\u202fms" not in html
    assert 'data-resource="hbm"' in html
    assert "not reported" in html
    assert len([b for b in page.all("button") if "data-sort" in b]) == 3
    assert 'scope="row"' in html


def test_a_table_without_rows_says_so() -> None:
    html = render(TABLE + "{{ table([{'label': 'A'}], [], empty='No runs yet.') }}")
    assert "No runs yet." in html
    assert "<button" not in html


def test_a_table_takes_values_already_formatted_and_zero() -> None:
    html = render(
        TABLE + "{{ table([{'label': 'A'}, {'label': 'B', 'numeric': true}], [['x', v], ['y', 0]]) }}",
        v=quantity(2.0, "s"),
    )
    assert "2\u202fs" in html
    assert 'data-value="0"' in html


def test_a_field_ties_label_hint_and_error_to_the_input() -> None:
    html = render(
        FIELD + "{{ field('ttft_ms', 'TTFT', value, 'number', unit='ms', hint='p50', error=error, attrs={'min': 0}) }}",
        value=HOSTILE,
        error=HOSTILE,
    )
    page = Elements(html)
    (box,) = page.all("input")
    (label,) = page.all("label")
    assert label["for"] == box["id"] == "f-ttft-ms"
    assert box["value"] == HOSTILE
    assert box["aria-invalid"] == "true"
    assert box["min"] == "0"
    ids = {attributes.get("id") for attributes in page.all("p")}
    assert set((box["aria-describedby"] or "").split()) == ids == {"f-ttft-ms-hint", "f-ttft-ms-error"}
    assert "<script" not in html


def test_a_select_keeps_what_was_chosen() -> None:
    html = render(
        FIELD + "{{ field('kv', 'KV', 'fp8', 'select', options=[{'group': 'G', 'options': ['fp8']}, ('a', 'A')]) }}"
    )
    options = Elements(html).all("option")
    assert [(o["value"], "selected" in o) for o in options] == [("fp8", True), ("a", False)]


def test_a_choice_checks_one_of_its_radio_buttons() -> None:
    html = render(FIELD + "{{ choice('phase', 'Phase', ['train', ('decode', 'Decode')], 'decode') }}")
    radios = Elements(html).all("input")
    assert [(r["value"], "checked" in r) for r in radios] == [("train", False), ("decode", True)]


def test_a_chart_carries_its_data_its_finding_and_its_table() -> None:
    spec = {
        "data": [{"type": "scatter", "x": [1], "y": [2], "name": "</script><b>"}],
        "layout": {"height": 410},
        "meta": {"title": HOSTILE, "caption": "H100", "table": {"columns": [{"label": "x"}], "rows": [[1]]}},
    }
    html = render(CHART + "{{ chart('roof', spec) }}", spec=spec)
    block = re.search(r'<script type="application/json">(.*?)</script>', html, re.S)
    assert block is not None
    assert json.loads(block[1])["data"][0]["name"] == "</script><b>"
    assert html.count("</script>") == 1
    page = Elements(html)
    (figure,) = page.all("figure")
    assert figure["id"] == "roof"
    assert figure["style"] == "--chart-height: 410px"
    assert page.all("table")
    assert page.all("figcaption")
    assert [b["data-export"] for b in page.all("button")] == ["png", "svg", "csv", "json"]


@pytest.mark.parametrize(
    "call",
    [
        "ui.heading(x, sub=x, eyebrow=x)",
        "ui.answer(x, resource='net')",
        "ui.breadcrumb([(x, '/a'), (x, none)])",
        "ui.stats([{'label': x, 'value': 1.5, 'unit': 's', 'note': x, 'resource': 'hbm'}])",
        "ui.finding('warning', x, x, [x], '/a', x)",
        "ui.notice('error', x, x)",
        "ui.empty(x, x, x, '/a')",
        "ui.tabs([{'id': 'a', 'label': x, 'url': '/a', 'count': 3}], 'a', x)",
        "ui.dropzone('/runs', x, x, max_bytes=10)",
        "ui.copy_button(x, x)",
        "ui.tray_button({'kind': 'run', 'id': x, 'label': x}, x)",
        "ui.share_line(x, x)",
        "ui.facts([(x, x), (x, none)])",
        "ui.split_bar([{'resource': 'hbm', 'value': 2.0}, {'resource': 'odd', 'value': 0, 'text': x}], x)",
        "ui.ratio_bar(1.2, x)",
        "ui.ratio_bar(none)",
        "ui.legend()",
        "ui.pager('/a', '/b', x)",
    ],
)
def test_every_part_renders_and_escapes(call: str) -> None:
    html = render(UI + "{{ " + call + " }}", x=HOSTILE)
    assert html.strip()
    assert "<script" not in html
    Elements(html)


def test_parts_that_wrap_others_keep_their_content() -> None:
    html = render(
        UI
        + "{% call ui.section('S', id='s') %}A{% endcall %}{% call ui.region('r', 'R') %}B{% endcall %}"
        + "{% call ui.sheet('C', 'sum') %}D{% endcall %}"
        + "{% call(tab) ui.tabset('v', [('one', 'One'), ('two', 'Two')], 'two') %}panel {{ tab }}{% endcall %}"
    )
    assert "panel one" in html
    assert "panel two" in html
    radios = Elements(html).all("input")
    assert [(r["value"], "checked" in r) for r in radios] == [("one", False), ("two", True)]


def test_resources_have_one_order_and_the_api_words_find_them() -> None:
    assert [known.key for known in rendering.RESOURCES][:2] == ["compute", "hbm"]
    assert rendering.resource("net").label == "Network"
    assert rendering.resource("scale_out").key == "link-far"
    assert rendering.resource("memory").key == "hbm"
    assert rendering.resource("odd_thing") == rendering.Resource("other", "Odd thing", "OTH")
