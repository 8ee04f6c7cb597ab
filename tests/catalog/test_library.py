"""The library's own files: workloads that techniques are tried on, and every technique has one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog.library import load_library
from app.catalog.loader import CatalogError, load_catalog
from app.domain.levers.registry import LEVERS
from app.services.estimate import bound_of
from app.services.technique_effect import try_outs
from app.services.what_if import WhatIf


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


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ({"phases": ["training"]}, "workloads.0.phases.0", "use train"),
        ({"opens": ["no-such"]}, "workloads.0.opens.0", "no technique"),
        ({"state": {}}, "workloads.0.state", "is missing"),
        ({"title": None}, "workloads.0.title", "is missing"),
        ({"speed": 1}, "workloads.0.speed", "unknown field"),
    ],
)
def test_a_broken_workload_names_its_field(tmp_path: Path, change: dict[str, Any], place: str, words: str) -> None:
    good = {"id": "a", "title": "A", "phases": ["train"], "state": {"phase": "train"}}
    (tmp_path / "workloads.json").write_text(json.dumps({"workloads": [{**good, **change}]}), encoding="utf-8")
    with pytest.raises(CatalogError, match=words) as refused:
        load_library(tmp_path)
    assert refused.value.field_path == place
