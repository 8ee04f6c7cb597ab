"""Pages of the catalogue: lists, every entry, a team's own profiles and models, and the search."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.catalog.loader import load_catalog
from app.domain.model import OtherMixer
from app.services.context import Context
from app.storage import runs as stored_runs
from app.web.hardware_form import FIELDS, read_form, shown_form

CATALOG = load_catalog()
H100 = "nvidia-h100-sxm"
UPLOAD = Path(__file__).parents[1] / "fixtures/uploads/vllm-bench-serve/2.json"
HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}


def words(page: str) -> str:
    """The text of a page as a reader sees it, without scripts and tags."""
    return " ".join(
        html.unescape(re.sub(r"<[^>]+>", " ", re.sub(r"<script.*?</script>", "", page, flags=re.S))).split()
    )


def typed(page: str) -> dict[str, str]:
    """What a page's edit form would send as it stands."""
    form = page[page.index('class="edit-form"') :].split("</form>")[0]
    sent: dict[str, str] = {}
    for tag in re.findall(r"<input[^>]*>", form):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if attributes.get("type") != "checkbox" or " checked" in tag:
            sent[attributes["name"]] = html.unescape(attributes.get("value", ""))
    for select in re.findall(r"<select.*?</select>", form, flags=re.S):
        name = re.search(r'name="([^"]*)"', select)
        chosen = re.search(r'value="([^"]*)" selected', select)
        assert name
        sent[name[1]] = html.unescape(chosen[1]) if chosen else ""
    for name, text in re.findall(r'<textarea[^>]*name="([^"]*)"[^>]*>\n?(.*?)</textarea>', form, flags=re.S):
        sent[name] = html.unescape(text)
    return sent


def copied(client: TestClient, kind: str = "hardware", source: str = H100, **changes: str) -> str:
    """The address of a copy with some fields changed."""
    page = client.get(f"/{kind}/{source}/copy")
    assert page.status_code == 200
    answer = client.post(f"/{kind}/{source}/copy", data={**typed(page.text), **changes})
    assert answer.status_code == 303, words(answer.text)[:600]
    return str(answer.headers["location"])


def error_beside(page: str, field_name: str) -> str:
    """The message beside a field."""
    found = re.search(rf'id="f-{re.sub(r"[._]", "-", field_name)}-error">(.*?)</p>', page)
    assert found, f"no message beside {field_name}: {words(page)[:500]}"
    return html.unescape(found[1])


def rows(page: str) -> list[str]:
    """Names of a list's rows, in order."""
    return [html.unescape(name) for name in re.findall(r'<th scope="row"><a href="[^"]*">(.*?)</a>', page)]


# ---- every entry ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def entries() -> list[str]:
    return [f"/hardware/{id_}" for id_ in CATALOG.hardware] + [f"/models/{id_}" for id_ in CATALOG.models]


def test_every_entry_has_a_page_without_holes(client: TestClient, entries: list[str]) -> None:
    for address in entries:
        answer = client.get(address)
        assert answer.status_code == 200, address
        text = words(answer.text)
        assert not re.search(r"\b(None|nan|NaN|undefined|inf)\b", text), address


def test_every_figure_of_a_device_shows_its_source(client: TestClient) -> None:
    text = words(client.get(f"/hardware/{H100}").text)
    assert "bf16 989 TFLOP/s s 794 TFLOP/s s 80 % of peak 295 secondary" in text
    assert "secondary pytorch/torchtitan: utils.py" in text
    # 67 TFLOP/s over 3.35 TB/s
    assert "fp32 67 TFLOP/s s not reported 20 secondary" in text
    assert "rest on somebody else's table only (secondary)" in text


def test_a_recalled_figure_says_so_in_words(client: TestClient) -> None:
    weak = {
        id_: [s for s in p.sources if s.read == "recalled" and "memory_bytes" in s.fields]
        for id_, p in CATALOG.hardware.items()
    }
    id_ = next(id_ for id_, found in weak.items() if found)
    text = words(client.get(f"/hardware/{id_}").text)
    assert "from memory without any document (recalled)" in text


def test_a_device_without_peaks_says_what_is_missing(client: TestClient) -> None:
    text = words(client.get("/hardware/amd-epyc-9654").text)
    assert "No roofline: nobody states a compute peak for this device." in text
    assert "Explore with this device" not in text


@pytest.mark.parametrize(
    "page",
    [
        "/hardware/apple-m1",
        "/hardware/nvidia-v100-sxm2-32gb",
        "/hardware/groq-lpu-v1",
        "/models/bert-base",
        "/models/sdxl-base",
    ],
)
def test_exploring_begins_with_a_question_that_suits(client: TestClient, page: str) -> None:
    """A device without bf16 is asked in its own format, and a model that emits no tokens is asked for one pass."""
    link = re.search(r'href="(/explore[^"]*)"[^>]*>Explore with', client.get(page).text)
    assert link is not None
    answer = client.get(link[1].replace("&amp;", "&"))
    assert answer.status_code == 200, answer.text[:500]


def test_parameters_stand_beside_the_published_number(client: TestClient) -> None:
    text = words(client.get("/models/llama-3.1-8b").text)
    # 2*128256*4096 + 32*(2*4096^2 + 2*4096*1024 + 3*4096*14336 + 2*4096) + 4096
    assert "8,030,261,248" in text
    # 2 * 8 heads * 128 * 32 layers * 2 B = 128 KiB
    assert "each token adds 128 KiB of bf16 KV cache" in text
    assert "GQA: 32 query, 8 KV heads × 128" in text


def test_a_model_that_cannot_be_estimated_says_why(app: FastAPI, client: TestClient) -> None:
    known = CATALOG.models["falcon-h1-1.5b"]
    groups = tuple(replace(group, mixer=OtherMixer("something new")) for group in known.layers)
    models = {**CATALOG.models, known.id: replace(known, layers=groups)}
    app.state.context = replace(app.state.context, catalog=replace(CATALOG, models=models))
    text = words(client.get("/models/falcon-h1-1.5b").text)
    assert "This model cannot be estimated yet" in text
    assert "Explore with this model" not in text


# ---- lists ----------------------------------------------------------------------------------------------------------


def test_lists_hold_everything_and_search_by_alias(client: TestClient) -> None:
    assert len(rows(client.get("/hardware").text)) == len(CATALOG.hardware)
    assert len(rows(client.get("/models").text)) == len(CATALOG.models)
    assert rows(client.get("/hardware?q=NVIDIA+H100+80GB+HBM3").text) == ["H100 SXM5 80GB"]
    assert rows(client.get("/models?q=meta-llama/Llama-3.1-8B-Instruct").text) == ["Llama 3.1 8B"]
    assert rows(client.get("/models?q=llama3.1+405b").text) == ["Llama 3.1 405B"]


def test_a_word_finds_names_that_begin_with_it(client: TestClient) -> None:
    # H200 is made of GH100 silicon: that is no H100.
    assert all(name.startswith("H100") for name in rows(client.get("/hardware?q=h100").text))
    assert rows(client.get("/hardware?q=%3F%3F%3F").text) == []


def test_filters_and_orders_are_in_the_address(client: TestClient) -> None:
    page = client.get("/hardware?vendor=AMD&precision=fp4&sort=-bandwidth").text
    names = rows(page)
    assert names
    assert all("MI3" in name or "MI4" in name for name in names)
    bandwidths = [
        float(v) for v in re.findall(r'</th>\s*<td[^>]*>.*?</td>\s*<td class="num" data-value="([^"]+)"', page)
    ]
    assert bandwidths == sorted(bandwidths, reverse=True)
    assert 'aria-sort="descending"' in page
    assert "sort=bandwidth" in page  # the heading turns the order
    assert rows(client.get("/hardware?vendor=Nobody").text) == []
    assert client.get("/hardware?sort=bogus").status_code == 422


def test_htmx_gets_the_list_alone_and_a_clean_address(client: TestClient) -> None:
    for kind in ("hardware", "models"):
        fragment = client.get(f"/{kind}?q=a100&sort=&vendor=", headers=HTMX)
        assert "<html" not in fragment.text
        assert fragment.headers["HX-Replace-Url"] == f"/{kind}?q=a100"
        assert "HX-Request" in fragment.headers["Vary"]
        page = client.get(f"/{kind}?q=a100")
        assert "<html" in page.text
        assert rows(page.text) == rows(fragment.text)
        assert 'type="submit">Filter' in page.text


def test_models_can_be_asked_for_by_what_can_be_estimated(client: TestClient) -> None:
    yes, no = (rows(client.get(f"/models?estimable={answer}").text) for answer in ("yes", "no"))
    assert len(yes) == sum(m.supported for m in CATALOG.models.values())
    assert len(yes) + len(no) == len(CATALOG.models)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_other_names_lead_to_the_page(client: TestClient) -> None:
    assert client.get("/hardware/H100 SXM5").headers["location"] == f"/hardware/{H100}"
    assert client.get("/hardware/H100").headers["location"] == "/hardware?q=H100"
    assert client.get("/models/Llama-3.1-8B").headers["location"] == "/models/llama-3.1-8b"
    missing = client.get("/hardware/nvidia-h1000")
    assert missing.status_code == 404
    assert client.get("/models/gpt-9").status_code == 404


# ---- a team's own profiles ------------------------------------------------------------------------------------------


def test_a_form_sent_back_unchanged_changes_nothing() -> None:
    for profile in CATALOG.hardware.values():
        form = read_form(shown_form(profile).typed, profile)
        again = shown_form(profile).data
        assert {k: v for k, v in form.data.items() if v != []} == {k: v for k, v in again.items() if v != []}, (
            profile.id
        )


def test_a_copy_marks_what_was_changed_as_entered(client: TestClient) -> None:
    address = copied(client, name="H100 at 500 W", board_power_w="500", **{"peak.flop_per_s.bf16": "0.8 PFLOP/s"})
    assert address == "/hardware/h100-at-500-w"
    answer = client.get(f"/api/v1{address}").json()
    assert answer["copied_from"] == H100
    assert answer["board_power_w"] == 500
    assert answer["peak"]["flop_per_s"]["bf16"] == 800e12
    assert answer["peak"]["flop_per_s"]["fp8"] == 1979e12
    entered = next(s for s in answer["sources"] if s["read"] == "entered")
    assert sorted(entered["fields"]) == ["board_power_w", "peak.flop_per_s.bf16"]
    assert not any("board_power_w" in s["fields"] for s in answer["sources"] if s["read"] != "entered")
    assert any("peak.flop_per_s.fp8" in s["fields"] for s in answer["sources"] if s["read"] == "secondary")
    page = client.get(address).text
    assert "Copied from" in page
    assert f'href="/hardware/{H100}"' in page
    assert rows(client.get("/hardware").text)[0] == "H100 at 500 W"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35 TB/s", 3.35e12),
        ("3350", 3.35e12),
        ("3,350 GB/s", 3.35e12),
        ("3.35e3", 3.35e12),
        ("26.8 Tbit/s", 3.35e12),
        ("3 TiB/s", 3 * 2.0**40),
    ],
)
def test_bandwidth_as_people_write_it(client: TestClient, text: str, value: float) -> None:
    address = copied(client, name="Mine", **{"peak.memory_bandwidth_bytes_per_s": text})
    assert client.get(f"/api/v1{address}").json()["peak"]["memory_bandwidth_bytes_per_s"] == value


def test_other_quantities_as_people_write_them(client: TestClient) -> None:
    address = copied(
        client,
        name="Mine",
        memory_bytes="80 GiB",
        boost_clock_hz="1.98 GHz",
        launch_overhead_s="1.5 µs",
        l2_bytes="50 MB",
        **{"scale_out.bandwidth_bytes_per_s": "800", "peak.flop_per_s.fp8": "1979 tflops"},
    )
    answer = client.get(f"/api/v1{address}").json()
    assert answer["memory_bytes"] == 80 * 2**30
    assert answer["boost_clock_hz"] == 1.98e9
    assert answer["launch_overhead_s"] == 1.5e-6
    assert answer["l2_bytes"] == 50e6
    assert answer["scale_out"]["bandwidth_bytes_per_s"] == 100e9  # Gbit/s
    assert answer["peak"]["flop_per_s"]["fp8"] == 1979e12


@pytest.mark.parametrize(
    ("field_name", "text", "message"),
    [
        ("peak.memory_bandwidth_bytes_per_s", "3350 GHz", "'GHz' is not a unit of this figure"),
        ("peak.memory_bandwidth_bytes_per_s", "400 Gb/s", "may mean bits or bytes: write GB/s or Gbit/s"),
        ("peak.memory_bandwidth_bytes_per_s", "3,35 TB/s", "write a decimal point"),
        ("peak.memory_bandwidth_bytes_per_s", "fast", "is not a number with a unit"),
        ("peak.memory_bandwidth_bytes_per_s", "0.05", "too small for this figure"),
        ("peak.memory_bandwidth_bytes_per_s", "-1", "negative"),
        ("peak.memory_bandwidth_bytes_per_s", "", "Give the memory bandwidth"),
        ("memory_bytes", "80 Gb", "means bits"),
        ("memory_bytes", "1e300 TB", "too large"),
        ("launch_overhead_s", "2 s", "too large for this figure"),
        ("achievable.flop_per_s.bf16", "9000", "times the peak"),
        ("scale_up.peer_to_peer_bytes_per_s", "900", "is one of them bidirectional?"),
        ("scale_up.domain_size", "eight", "is not a whole number"),
        ("release_year", "1700", "out of range"),
        ("name", "", "Give the profile a name"),
        ("name", "x" * 201, "at most 200"),
        ("name", "a\u202egnp.exe", "control characters"),
        ("name", "two\nlines", "line break"),
        ("name", "nul\x00", "control characters"),
    ],
)
def test_what_cannot_be_read_is_said_beside_its_field(
    client: TestClient, field_name: str, text: str, message: str
) -> None:
    sent = {
        **typed(client.get(f"/hardware/{H100}/copy").text),
        "name": "Mine",
        "architecture": "Kept",
        field_name: text,
    }
    answer = client.post(f"/hardware/{H100}/copy", data=sent)
    assert answer.status_code == 422
    assert message in error_beside(answer.text, field_name)
    again = typed(answer.text)
    assert again["architecture"] == "Kept"
    if text.isprintable():
        assert again[field_name] == text
    assert client.get("/hardware/mine").status_code == 404


def test_a_name_that_is_taken_is_refused(client: TestClient) -> None:
    copied(client, name="Ours")
    sent = typed(client.get(f"/hardware/{H100}/copy").text)
    for name, reason in (("Ours", "stored already"), ("H100 SXM5 80GB", "already means")):
        answer = client.post(f"/hardware/{H100}/copy", data={**sent, "name": name})
        assert answer.status_code == 409
        assert reason in error_beside(answer.text, "name")


def test_an_edit_keeps_sources_and_counts_revisions(client: TestClient) -> None:
    address = copied(client, name="Ours")
    sent = typed(client.get(f"{address}/edit").text)
    assert sent["revision"] == "1"
    assert client.post(f"{address}/edit", data={**sent, "launch_overhead_s": ""}).status_code == 303
    answer = client.get(f"/api/v1{address}").json()
    assert "launch_overhead_s" not in answer
    assert answer["revision"] == 2
    assert answer["copied_from"] == H100
    assert not any(s["read"] == "entered" for s in answer["sources"])  # a dropped figure entered nothing
    assert answer["tile_facts"]["max_threads_per_unit"] == 2048  # what has no field stays


def test_two_people_editing_lose_nothing(client: TestClient) -> None:
    address = copied(client, name="Ours")
    mine = theirs = typed(client.get(f"{address}/edit").text)
    assert client.post(f"{address}/edit", data={**theirs, "board_power_w": "650"}).status_code == 303
    answer = client.post(f"{address}/edit", data={**mine, "board_power_w": "600"})
    assert answer.status_code == 409
    text = words(answer.text)
    assert "Somebody else saved this profile while you were editing" in text
    assert "Board power 650 W 600 W" in text
    again = typed(answer.text)
    assert again["board_power_w"] == "600"
    assert again["revision"] == "2"
    assert client.get(f"/api/v1{address}").json()["board_power_w"] == 650
    assert client.post(f"{address}/edit", data=again).status_code == 303
    assert client.get(f"/api/v1{address}").json()["board_power_w"] == 600


def test_shipped_entries_stay_as_they_are(client: TestClient) -> None:
    for kind, id_ in (("hardware", H100), ("models", "llama-3.1-8b")):
        assert client.get(f"/{kind}/{id_}/edit").headers["location"] == f"/{kind}/{id_}/copy"
        sent = typed(client.get(f"/{kind}/{id_}/copy").text)
        assert client.post(f"/{kind}/{id_}/edit", data={**sent, "revision": "1"}).status_code == 409
        assert client.post(f"/{kind}/{id_}/delete").status_code == 409
        assert "Delete this" not in client.get(f"/{kind}/{id_}").text


def test_a_deleted_profile_is_gone(client: TestClient) -> None:
    address = copied(client, name="Ours")
    second = copied(client, source="ours", name="Ours too")
    assert client.post(f"{address}/delete").headers["location"] == "/hardware"
    assert client.get(address).status_code == 404
    assert "Ours too" in rows(client.get("/hardware").text)
    assert "ours, which is gone" in words(client.get(second).text)
    assert client.post(f"{address}/delete").status_code == 404


def test_runs_keep_a_profile_from_being_deleted(
    client: TestClient, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = copied(client, name="Ours")
    monkeypatch.setattr(stored_runs, "count_runs", lambda **_: 2)
    answer = client.post(f"{address}/delete")
    assert answer.status_code == 409
    assert "2 runs are linked to 'ours': link them elsewhere first." in words(answer.text)
    assert client.get(address).status_code == 200


def test_hostile_names_are_text(client: TestClient) -> None:
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
    address = copied(client, name=evil, vendor="</title><b>", **{"scale_up.name": "{{ 7*7 }}", "notes": "<i>\n'"})
    for page in (address, f"{address}/edit", f"{address}/copy", "/hardware", "/search?q=script", "/hardware?q=script"):
        answer = client.get(page)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.text
        assert "<img src=x" not in answer.text
        assert "<b>" not in answer.text
        assert "<i>" not in answer.text
    assert "{{ 7*7 }}" in words(client.get(address).text)
    assert evil in rows(client.get("/hardware").text)


def test_a_search_text_is_escaped(client: TestClient) -> None:
    for page in ("/search", "/hardware", "/models"):
        answer = client.get(page, params={"q": '"><script>x</script>', "kind": '"><script>y</script>'})
        assert answer.status_code == 200
        assert "<script>x" not in answer.text
        assert "<script>y" not in answer.text
        assert client.get(page, params={"q": "x" * 201}).status_code == 422


def test_a_form_of_another_site_is_refused(client: TestClient) -> None:
    answer = client.post(f"/hardware/{H100}/copy", data={"name": "x"}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 403


def test_fields_have_names_of_the_catalogue() -> None:
    assert len(FIELDS) == len({field.id for field in FIELDS.values()})


# ---- a team's own models --------------------------------------------------------------------------------------------


def test_a_model_is_copied_and_edited_as_json(client: TestClient) -> None:
    sent = typed(client.get("/models/llama-3.1-8b/copy").text)
    data = json.loads(sent["json"])
    assert "id" not in data
    assert "aliases" not in data
    assert "computed_total_params" not in data
    data["num_layers"] = data["layers"][0]["count"] = 16
    address = copied(client, "models", "llama-3.1-8b", name="Llama 3.1 8B, half", json=json.dumps(data))
    text = words(client.get(address).text)
    assert "Copied from Llama 3.1 8B" in text
    # half of 32 layers: 64 KiB a token
    assert "each token adds 64 KiB of bf16 KV cache" in text
    assert rows(client.get("/models").text)[0] == "Llama 3.1 8B, half"

    sent = typed(client.get(f"{address}/edit").text)
    assert client.post(f"{address}/edit", data={**sent, "name": "Llama 3.1 8B, cut"}).status_code == 303
    stale = client.post(f"{address}/edit", data={**sent, "name": "Mine"})
    assert stale.status_code == 409
    assert "Somebody else saved this model while you were editing" in stale.text
    assert typed(stale.text)["name"] == "Mine"
    assert client.post(f"{address}/edit", data=typed(stale.text)).status_code == 303
    answer = client.get(f"/api/v1{address}").json()
    assert (answer["name"], answer["revision"], answer["copied_from"]) == ("Mine", 3, "llama-3.1-8b")
    assert client.post(f"{address}/delete").status_code == 303
    assert client.get(address).status_code == 404


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1, column 2"),
        ("[]", "Write one object"),
        ('{"hidden_size": NaN}', "NaN"),
        ('{"hidden_size": 1, "hidden_size": 2}', "stands twice"),
        ("[" * 100_000, "nested deeper"),
        ("{" + '"a":{' * 100 + "}" * 101, "nested deeper"),
        ("", "is no JSON"),
        ('{"hidden_size": 4096}', "vocab_size: is missing"),
        ('{"n_embd": 4096}', "give hidden_size"),
        ('{"notes": ["' + "x" * 200_001 + '"]}', "at most 200,000"),
    ],
)
def test_what_is_no_model_is_said_beside_the_text(client: TestClient, text: str, message: str) -> None:
    answer = client.post("/models/llama-3.1-8b/copy", data={"name": "Mine", "json": text})
    assert answer.status_code == 422
    assert message in error_beside(answer.text, "json")
    assert typed(answer.text)["json"] == text


def test_a_layer_that_cannot_be_is_named_by_its_path(client: TestClient) -> None:
    sent = typed(client.get("/models/llama-3.1-8b/copy").text)
    data = json.loads(sent["json"])
    data["layers"][0]["kv_heads"] = 5
    answer = client.post("/models/llama-3.1-8b/copy", data={"name": "Mine", "json": json.dumps(data)})
    assert "layers.0.kv_heads: 5 KV heads do not divide 32 query heads" in error_beside(answer.text, "json")


# ---- search ---------------------------------------------------------------------------------------------------------


def test_search_groups_what_it_finds(client: TestClient) -> None:
    page = client.get("/search?q=h100+sxm").text
    assert f'href="/hardware/{H100}"' in page
    assert "Models" not in re.findall(r"<h2>(.*?)</h2>", page)
    page = client.get("/search?q=llama").text
    assert re.search(r"the first 8 here: <a href=\"/models\?q=llama\">all of them</a>", page)
    fragment = client.get("/search?q=llama", headers=HTMX)
    assert "<html" not in fragment.text
    assert fragment.headers["HX-Replace-Url"] == "/search?q=llama"


def test_search_says_what_to_do(client: TestClient) -> None:
    assert "Type a device, a model" in words(client.get("/search").text)
    assert "Try fewer or shorter words" in words(client.get("/search?q=zzzz").text)


def test_runs_are_found_and_listed_on_their_device(client: TestClient) -> None:
    copied(client, name="Ours")
    file = UPLOAD.read_bytes()
    answer = client.post("/api/v1/runs?filename=nightly-zebra.json&hardware=ours&name=Nightly+zebra", content=file)
    assert answer.status_code in (200, 201), answer.text
    page = client.get("/search?q=zebra").text
    assert "<h2>Runs</h2>" in page
    assert "Nightly zebra" in page
    device = client.get("/hardware/ours").text
    assert "Nightly zebra" in device
    assert "1 run would point at nothing" in words(device)
    assert client.post("/hardware/ours/delete").status_code == 409
