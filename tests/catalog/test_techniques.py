"""The technique library: every entry is sound, agrees with its lever, and a broken one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog.check import lint_catalog
from app.catalog.codec import hardware_to_json, model_to_json
from app.catalog.links import link_problem
from app.catalog.loader import catalog_errors, load_catalog
from app.catalog.technique_codec import technique_from_json
from app.domain.errors import InvalidInput
from app.domain.levers.registry import LEVERS

GOOD: dict[str, Any] = {
    "id": "fa2",
    "name": "FlashAttention-2",
    "family": "attention",
    "summary": "Splits attention over the sequence.",
    "saves": ["flops"],
    "memory_lever": "dematerialize",
    "phases": ["train"],
    "architectures": ["any"],
    "gpu_generations": ["sm80"],
    "book_as": "kernel",
    "hurts": "Short sequences.",
    "gains": [{"figure": "2x", "conditions": "on A100", "source": "paper", "read": "primary"}],
    "related": ["neighbour"],
}
NEIGHBOUR = {**GOOD, "id": "neighbour", "related": ["fa2"], "no_lever": "It stands here for another entry."}


def test_every_lever_has_an_entry_that_agrees_with_it() -> None:
    techniques = load_catalog().techniques
    assert set(LEVERS) <= set(techniques)
    for id_, lever in LEVERS.items():
        assert techniques[id_].book_as == lever.book_as, id_
        assert techniques[id_].memory_lever == lever.memory_lever, id_
        assert techniques[id_].no_lever is None, id_


def test_what_is_no_lever_says_why() -> None:
    others = {id_: t for id_, t in load_catalog().techniques.items() if id_ not in LEVERS}
    assert set(others) == {
        "chunked-prefill",
        "pd-disagg",
        "dataloader",
        "gpu-preproc",
        "chunked-contrastive",
        "vae-tiling",
        "flashfftconv",
    }
    assert all(technique.no_lever for technique in others.values())


def test_every_figure_has_its_conditions_and_its_source() -> None:
    techniques = load_catalog().techniques.values()
    assert sum(len(technique.gains) for technique in techniques) > 60
    for technique in techniques:
        assert technique.summary.endswith(".")
        for gain in technique.gains:
            assert gain.figure
            assert gain.conditions
            assert gain.source
        assert technique.gains or technique.references, f"{technique.id} says nowhere where it comes from"


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"family": "attentoin"}, ("family",), "use one of attention"),
        ({"saves": []}, ("saves",), "name one or more"),
        ({"saves": ["flops", "watts"]}, ("saves", 1), "unknown value 'watts'"),
        ({"phases": None}, ("phases",), "is missing"),
        ({"book_as": "magic"}, ("book_as",), "use one of kernel"),
        ({"memory_lever": "none"}, ("memory_lever",), "use one of dematerialize"),
        ({"summary": "  "}, ("summary",), "is empty"),
        ({"gains": [{"figure": "2x", "source": "paper", "read": "primary"}]}, ("gains", 0, "conditions"), "is missing"),
        ({"gains": [{**GOOD["gains"][0], "read": "heard"}]}, ("gains", 0, "read"), "use one of primary"),
        ({"references": [{"title": "x", "url": "ftp://x"}]}, ("references", 0, "url"), "http"),
        ({"references": [{"title": "x", "url": "http://x.org/a"}]}, ("references", 0, "url"), "https"),
        ({"gains": []}, ("references",), "is missing"),
        ({"hurts": None}, ("hurts",), "is missing"),
        ({"related": []}, ("related",), "is missing"),
        ({"related": ["fa1", "fa2"]}, ("related", 1), "the entry itself"),
        ({"related": ["fa1", "fa1"]}, ("related", 1), "listed twice"),
        ({"speedup": 2}, ("speedup",), "unknown field"),
        ({"id": "Fa 2"}, ("id",), "lower-case"),
    ],
)
def test_a_broken_entry_names_its_field(change: dict[str, Any], field: tuple[str | int, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        technique_from_json({**GOOD, **change})
    assert refused.value.loc == field


def small(root: Path, technique: dict[str, Any]) -> Path:
    shipped = load_catalog()
    for kind, id_, data in (
        ("hardware", "nvidia-t4", hardware_to_json(shipped.hardware["nvidia-t4"])),
        ("models", "gpt2", model_to_json(shipped.models["gpt2"])),
        ("techniques", "fa2", technique),
        ("techniques", "neighbour", NEIGHBOUR),
    ):
        (root / kind).mkdir(exist_ok=True)
        (root / kind / f"{id_}.json").write_text(json.dumps(data), encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://arxiv.org/abs/2205.14135", None),
        ("https://arxiv.org/abs/2205.14135v2", None),
        ("https://arxiv.org/pdf/2205.14135", "abstract"),
        ("https://arxiv.org/abs/22O5.14135", "abstract"),
        ("https://github.com/deepseek-ai/DeepEP", None),
        ("https://github.com/deepseek-ai", "repository"),
        ("https://localhost/a", "public host"),
        ("https://10.0.0.1/a", "public host"),
        ("https://name@example.org/a", "public host"),
        ("https://example.org:8080/a", "public host"),
        ("https://example.org:x/a", "no web address"),
        ("http://example.org/a", "https"),
    ],
)
def test_the_form_of_links(url: str, problem: str | None) -> None:
    found = link_problem(url)
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_an_entry_names_its_documents_once() -> None:
    techniques = load_catalog().techniques
    assert [d.url for d in techniques["fa1"].documents] == ["https://arxiv.org/abs/2205.14135"]
    assert all(technique.documents for technique in techniques.values())


def test_related_techniques_must_exist(tmp_path: Path) -> None:
    (error,) = catalog_errors(small(tmp_path, {**GOOD, "related": ["no-such"]}))
    assert (error.file, error.field_path) == ("techniques/fa2.json", "related.0")
    assert "no-such" in error.reason


def test_loading_names_the_file(tmp_path: Path) -> None:
    error, *_ = catalog_errors(small(tmp_path, {**GOOD, "family": "x"}))
    assert (error.file, error.field_path) == ("techniques/fa2.json", "family")


def test_lint_holds_an_entry_against_its_lever(tmp_path: Path) -> None:
    wrong = {**GOOD, "book_as": "runtime", "memory_lever": "pack", "no_lever": "because"}
    found = {(e.file, e.field_path): e.reason for e in lint_catalog(small(tmp_path, wrong))}
    assert "the lever books as kernel" in found["techniques/fa2.json", "book_as"]
    assert "the lever's is dematerialize" in found["techniques/fa2.json", "memory_lever"]
    assert "left out" in found["techniques/fa2.json", "no_lever"]
    assert found["techniques/fa1.json", ""] == "is missing: there is a lever of this id"


def test_the_shipped_library_is_sound() -> None:
    assert [e for e in lint_catalog() if e.file.startswith("techniques/")] == []
