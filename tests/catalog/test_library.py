"""The library's own files: workloads, reference pages and checklists are sound, and a broken one is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.catalog.library import load_library
from app.catalog.loader import CatalogError, load_catalog
from app.domain.levers.registry import LEVERS
from app.domain.overlap import LEVELS
from app.services.estimate import bound_of
from app.services.technique_effect import try_outs
from app.services.what_if import WhatIf

SHIPPED = Path(__file__).parents[2] / "app/catalog/data/library"


@pytest.mark.parametrize("item", load_library().try_outs, ids=lambda item: item.id)
def test_every_workload_can_be_asked_and_fits(item: Any) -> None:
    catalog, state = load_catalog(), WhatIf(**item.state)
    model = catalog.models[state.model]
    found = bound_of(catalog.hardware[state.hardware], model, state.request(model).workload.to_domain())
    assert found.memory.fits, item.id


def test_every_lever_has_a_workload_of_its_phases() -> None:
    techniques = load_catalog().techniques
    for id_ in LEVERS:
        assert try_outs(techniques[id_]), id_
    for id_, technique in techniques.items():
        if id_ not in LEVERS:
            assert try_outs(technique) == ()


def test_a_technique_opens_where_it_is_told_to() -> None:
    techniques = load_catalog().techniques
    assert try_outs(techniques["split-kv"])[0].id == "long-decode"
    assert try_outs(techniques["kv-fp8"])[0].id == "chat-decode"


def test_every_claim_rests_on_something_and_reads_as_a_sentence() -> None:
    library = load_library()
    claims = [claim for section in library.sections.values() for claim in section.claims]
    assert len(claims) > 150
    for claim in claims:
        assert claim.sources, claim.text
        assert claim.text.endswith((".", "?")), claim.text
    for checklist in library.checklists.values():
        assert all(item.sources and item.why.endswith(".") for item in checklist.items), checklist.id
    assert {source.read for source in library.sources.values()} == {"primary", "secondary", "derived", "assumed"}


def test_pages_are_complete() -> None:
    library, catalog = load_library(), load_catalog()
    levers = [entry.memory_lever for entry in library.sections["memory-levers"].entries]
    assert levers == ["dematerialize", "compress", "pack", "recompute", "shard", "allocator"]
    assert [entry.level for entry in library.sections["overlap-levels"].entries] == list(LEVELS)
    assert len(library.sections["benchmark-mistakes"].entries) == 10
    assert all(entry.rules for entry in library.sections["benchmark-mistakes"].entries)
    assert {found.scenario for found in library.checklists.values() if found.kind == "priorities"} == set(
        catalog.trees.scenarios
    )
    assert [title.split(":")[0] for title, _ in library.checklists["month-plan"].groups] == [
        f"Week {number}" for number in (1, 2, 3, 4)
    ]


def test_what_is_algorithmic_is_booked_apart_once() -> None:
    listed = [id_ for entry in load_library().sections["algorithmic"].entries for id_ in entry.techniques]
    assert sorted(listed) == sorted(t.id for t in load_catalog().techniques.values() if t.book_as == "algorithmic")


def test_every_data_centre_gpu_belongs_to_one_generation() -> None:
    entries = load_library().sections["gpu-generations"].entries
    for profile in load_catalog().hardware.values():
        capability = float(profile.compute_capability or 0)
        if (profile.vendor == "NVIDIA" and capability >= 7 and capability != 11) or (profile.gfx or "").startswith(
            "gfx9"
        ):
            found = [
                entry.id
                for entry in entries
                if entry.devices is not None
                and entry.devices.vendor == profile.vendor
                and profile.architecture in entry.devices.architectures
                and (not entry.devices.capabilities or profile.compute_capability in entry.devices.capabilities)
            ]
            assert len(found) == 1, (profile.id, found)


def changed(folder: Path, file: str, path: tuple[str | int, ...], value: Any) -> Path:
    """A copy of the shipped library with one value of one file replaced."""
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
    data = json.loads((folder / file).read_text(encoding="utf-8"))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (folder / file).write_text(json.dumps(data), encoding="utf-8")
    return folder


GPU, LIST = "sections/gpu-generations.json", "checklists/decode.json"


@pytest.mark.parametrize(
    ("file", "path", "value", "words"),
    [
        ("workloads.json", ("workloads", 0, "phases"), ["training"], "use train"),
        ("workloads.json", ("workloads", 0, "opens"), ["no-such"], "no technique"),
        ("workloads.json", ("workloads", 0, "state"), {}, "is missing"),
        ("workloads.json", ("workloads", 0, "speed"), 1, "unknown field"),
        (GPU, ("answer", "sources"), [], "say what this rests on"),
        (GPU, ("answer", "sources"), ["hearsay"], "no source is called 'hearsay'"),
        (GPU, ("entries", 0, "points", 0, "text"), "No stop", "full stop"),
        (GPU, ("entries", 0, "techniques"), ["no-such"], "no technique"),
        (GPU, ("entries", 0, "matches", "architectures"), ["Pascal"], "no device of the catalogue"),
        (GPU, ("entries", 1, "id"), "volta", "listed twice"),
        (GPU, ("id",), "gpus", "does not match the file name"),
        ("sections/benchmark-mistakes.json", ("entries", 0, "rules"), ["BL-99"], "nothing is done for a rule"),
        (LIST, ("scenario",), "coding", "use decode, dense_train"),
        (LIST, ("groups", 0, "items", 0, "why"), None, "is missing"),
        (LIST, ("groups", 0, "items", 1, "id"), "kv-bytes", "listed twice"),
        (LIST, ("groups",), [], "something to do"),
        ("sources.json", ("sources", 0, "url"), "http://example.org/x", "https"),
        ("sources.json", ("sources", 0, "read"), "heard", "use one of primary"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, path: tuple[str | int, ...], value: Any, words: str) -> None:
    with pytest.raises(CatalogError, match=words) as refused:
        load_library(changed(tmp_path, file, path, value))
    assert refused.value.file == f"library/{file}"


def test_a_source_that_nothing_rests_on_is_refused(tmp_path: Path) -> None:
    sources = json.loads((SHIPPED / "sources.json").read_text(encoding="utf-8"))["sources"]
    more = [*sources, {"id": "idle", "title": "Idle", "read": "primary"}]
    with pytest.raises(CatalogError, match="nothing rests on 'idle'"):
        load_library(changed(tmp_path, "sources.json", ("sources",), more))
    with pytest.raises(CatalogError, match="cannot be read"):
        load_library(tmp_path / "nothing")
