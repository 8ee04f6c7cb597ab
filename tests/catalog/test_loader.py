"""Broken entries name the file, the field and the reason; names are found, or refused with a way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.catalog.check import lint_catalog, main
from app.catalog.codec import hardware_to_json, model_to_json
from app.catalog.loader import AmbiguousName, Catalog, CatalogError, UnknownName, catalog_errors, load_catalog


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


class Folder:
    """A small catalogue on disk whose entries a test breaks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shipped = load_catalog()
        for kind in ("hardware", "models"):
            (root / kind).mkdir()
        self.t4 = hardware_to_json(shipped.hardware["nvidia-t4"])
        self.gpt2 = model_to_json(shipped.models["gpt2"])
        self.write("hardware/nvidia-t4.json", self.t4)
        self.write("models/gpt2.json", self.gpt2)

    def write(self, name: str, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        (self.root / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_sound_folder_loads(folder: Folder) -> None:
    small = load_catalog(folder.root)
    assert list(small.hardware) == ["nvidia-t4"]
    assert list(small.models) == ["gpt2"]
    assert small.resolve_hardware("Tesla T4").id == "nvidia-t4"
    assert lint_catalog(folder.root) == []


def broken(folder: Folder, name: str, data: Any) -> CatalogError:
    folder.write(name, data)
    with pytest.raises(CatalogError) as caught:
        load_catalog(folder.root)
    return caught.value


def test_bad_json_says_where(folder: Folder) -> None:
    error = broken(folder, "hardware/nvidia-t4.json", '{"id": "nvidia-t4",\n "name": }')
    assert str(error) == "hardware/nvidia-t4.json: is not JSON: Expecting value at line 2, column 10"


def test_an_unknown_key_is_named(folder: Folder) -> None:
    error = broken(folder, "hardware/nvidia-t4.json", {**folder.t4, "memory_gbytes": 16})
    assert error.file == "hardware/nvidia-t4.json"
    assert error.field_path == "memory_gbytes"
    assert "did you mean 'memory_bytes'" in error.reason


def test_a_wrong_type_is_named(folder: Folder) -> None:
    error = broken(folder, "models/gpt2.json", {**folder.gpt2, "hidden_size": "768"})
    assert str(error) == "models/gpt2.json: hidden_size: expected a whole number, got text"


def test_a_wrong_type_deep_inside_is_named(folder: Folder) -> None:
    peak = {**folder.t4["peak"], "flop_per_s": {**folder.t4["peak"]["flop_per_s"], "fp16": [65e12]}}
    error = broken(folder, "hardware/nvidia-t4.json", {**folder.t4, "peak": peak})
    assert error.field_path == "peak.flop_per_s.fp16"
    assert "got a list" in error.reason


def test_a_file_name_that_is_not_the_id(folder: Folder) -> None:
    (folder.root / "models/gpt2.json").unlink()
    error = broken(folder, "models/gpt-two.json", folder.gpt2)
    assert str(error) == "models/gpt-two.json: id: 'gpt2' does not match the file name: call the file gpt2.json"


def test_one_id_twice(folder: Folder) -> None:
    error = broken(folder, "models/gpt2b.json", folder.gpt2)
    assert str(error) == "models/gpt2b.json: id: 'gpt2' is taken by gpt2.json"


def test_two_ids_that_a_lookup_cannot_tell_apart(folder: Folder) -> None:
    error = broken(folder, "models/gpt-2.json", {**folder.gpt2, "id": "gpt-2", "aliases": []})
    assert str(error) == "models/gpt2.json: id: 'gpt2' reads like 'gpt-2'"


def test_an_alias_that_is_another_entry(folder: Folder) -> None:
    other = {**folder.t4, "id": "board", "name": "Board", "aliases": ["nvidia t4"]}
    error = broken(folder, "hardware/board.json", other)
    assert error.field_path == "aliases"
    assert "'nvidia t4' is the id of another entry, nvidia-t4" in error.reason


def test_a_missing_id(folder: Folder) -> None:
    error = broken(folder, "models/gpt2.json", {k: v for k, v in folder.gpt2.items() if k != "id"})
    assert error.field_path == "id"


def test_a_repeated_key(folder: Folder) -> None:
    error = broken(folder, "models/gpt2.json", '{"id": "gpt2", "id": "gpt3"}')
    assert "states 'id' twice" in error.reason


def test_not_a_number(folder: Folder) -> None:
    error = broken(folder, "models/gpt2.json", '{"id": "gpt2", "hidden_size": NaN}')
    assert "holds NaN" in error.reason


def test_not_an_object(folder: Folder) -> None:
    assert "expected an object, got a list" in broken(folder, "models/gpt2.json", "[]").reason


def test_not_text(folder: Folder) -> None:
    (folder.root / "models/gpt2.json").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(CatalogError, match=r"models/gpt2\.json: is not UTF-8 text: byte 8"):
        load_catalog(folder.root)


def test_a_shipped_model_leaves_nothing_open(folder: Folder) -> None:
    error = broken(folder, "models/gpt2.json", {k: v for k, v in folder.gpt2.items() if k != "tie_word_embeddings"})
    assert "tie_word_embeddings is not given" in error.reason


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="hardware: the folder is missing"):
        load_catalog(tmp_path)


def test_all_errors_are_listed_not_only_the_first(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("hardware/nvidia-t4.json", {**folder.t4, "memory_bytes": 16})
    folder.write("models/gpt2.json", {**folder.gpt2, "vocab_size": -1})
    assert [e.file for e in catalog_errors(folder.root)] == ["hardware/nvidia-t4.json", "models/gpt2.json"]
    assert main([str(folder.root)]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("hardware/nvidia-t4.json: memory_bytes: 16 is too small")
    assert printed[1].startswith("models/gpt2.json: vocab_size:")


def test_lint_finds_a_figure_without_a_source_and_a_count_that_is_off(folder: Folder) -> None:
    folder.write("hardware/nvidia-t4.json", {**folder.t4, "graph_node_overhead_s": 1e-6})
    folder.write("models/gpt2.json", {**folder.gpt2, "computed_total_params": 125_000_000})
    found = {(e.file, e.field_path): e.reason for e in lint_catalog(folder.root)}
    assert found == {
        ("hardware/nvidia-t4.json", "graph_node_overhead_s"): "has no source",
        ("models/gpt2.json", "computed_total_params"): "is 125000000, but the layers add up to 124439808",
    }


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("nvidia-h100-sxm", "nvidia-h100-sxm"),
        ("h100-sxm", "nvidia-h100-sxm"),
        ("H100 SXM", "nvidia-h100-sxm"),
        ("h100_SXM5", "nvidia-h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "nvidia-h100-sxm"),
        ("NVIDIA H100 PCIe", "nvidia-h100-pcie"),
        ("NVIDIA H200", "nvidia-h200-sxm"),
        ("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
        ("AMD MI300X", "amd-mi300x"),
        ("TPU v5 lite", "google-tpu-v5e"),
        ("rtx 4090", "nvidia-rtx-4090"),
        # the same words in another order, and the size of the memory
        ("H100-80GB-SXM", "nvidia-h100-sxm"),
        ("A100-40GB-SXM", "nvidia-a100-sxm4-40gb"),
        ("A100 40GB PCIe", "nvidia-a100-pcie-40gb"),
        ("RTX A6000 48GB", "nvidia-rtx-a6000"),
        ("3090 24GB", "nvidia-rtx-3090"),
        ("7900 XTX", "amd-rx-7900-xtx"),
    ],
)
def test_devices_by_name(catalog: Catalog, name: str, id_: str) -> None:
    assert catalog.resolve_hardware(name).id == id_


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("llama-3.1-8b", "llama-3.1-8b"),
        ("Llama 3.1 8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("META-LLAMA/LLAMA-3.1-8B-INSTRUCT", "llama-3.1-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-r1"),
        ("Qwen/Qwen2.5-3B-Instruct", "qwen2.5-3b"),
        ("gpt2", "gpt2"),
    ],
)
def test_models_by_name(catalog: Catalog, name: str, id_: str) -> None:
    assert catalog.resolve_model(name).id == id_


@pytest.mark.parametrize("name", ["h100", "H100", "NVIDIA H100"])
def test_an_ambiguous_device_is_refused_with_the_candidates(catalog: Catalog, name: str) -> None:
    with pytest.raises(AmbiguousName) as caught:
        catalog.resolve_hardware(name)
    assert set(caught.value.candidates) == {"nvidia-h100-pcie", "nvidia-h100-sxm", "nvidia-h100-nvl"}
    assert "nvidia-h100-nvl" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["V100-SXM2-16GB", "H100-96GB-HBM2e", "RTX 3090 12GB", "80GB SXM", "M2 Ultra", "GH200-SXM"]
)
def test_words_of_another_device_name_none(catalog: Catalog, name: str) -> None:
    with pytest.raises((UnknownName, AmbiguousName)):
        catalog.resolve_hardware(name)


def test_an_unknown_name_shows_what_is_near(catalog: Catalog) -> None:
    with pytest.raises(UnknownName) as caught:
        catalog.resolve_hardware("H100 SMX")
    assert any("SXM" in near for near in caught.value.close)
    with pytest.raises(UnknownName) as caught:
        catalog.resolve_hardware("M4 Max")
    assert "M4 Max 40-core GPU" in caught.value.close
    with pytest.raises(UnknownName) as caught:
        catalog.resolve_model("zzz" * 1000)
    assert caught.value.close == ()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("hint", "id_", "certain"),
    [
        ("NVIDIA GH200 480GB", "nvidia-gh200-96gb", True),
        ("AMD Radeon 8060S Graphics", "amd-strix-halo-8060s", True),
        ("AMD Radeon 8060S Graphics (RADV GFX1151)", "amd-strix-halo-8060s", True),
        ("Radeon RX 7900 XTX (RADV NAVI31)", "amd-rx-7900-xtx", True),
        ("NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 3090", "nvidia-rtx-3090", True),
        ("8x NVIDIA H200", "nvidia-h200-sxm", True),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia-rtx-6000-ada", True),
        ("Intel(R) Data Center GPU Max 1550", "intel-max-1550", True),
        (
            "AMD Radeon RX 7900 XTX, AMD Ryzen 9 7950X 16-Core Processor (RADV RAPHAEL_MENDOCINO)",
            "amd-rx-7900-xtx",
            False,
        ),
    ],
)
def test_devices_in_a_files_own_words(catalog: Catalog, hint: str, id_: str, certain: bool) -> None:
    guess = catalog.guess_hardware(hint)
    assert guess is not None
    assert (guess.id, guess.certain) == (id_, certain)
    assert hint in guess.why


@pytest.mark.parametrize(
    "hint",
    [
        "",
        "cuda:0",
        "NVIDIA H100",
        "AMD Radeon Graphics",
        "Apple M4 Max",  # sold with 32 and with 40 cores
        "NVIDIA A100-PG509-200",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 3090, NVIDIA GeForce RTX 4090",
        "NVIDIA GeForce RTX 3090, Some New Board",
        "AMD Ryzen 9 7950X 16-Core Processor",
        "NVIDIA A100-SXM4-80GB / H100",
        "x" * 5000,
    ],
)
def test_a_doubtful_device_is_not_guessed(catalog: Catalog, hint: str) -> None:
    assert catalog.guess_hardware(hint) is None


@pytest.mark.parametrize(
    ("hint", "count", "id_", "certain"),
    [
        ("deepseek-ai/DeepSeek-R1", None, "deepseek-r1", True),
        ("DeepSeek-R1", None, "deepseek-r1", True),
        ("nvidia/DeepSeek-R1-0528-FP4", None, "deepseek-r1", True),
        ("Qwen/Qwen2.5-3B-Instruct", None, "qwen2.5-3b", True),
        ("Qwen/Qwen3.5-397B-A17B-FP8", None, "qwen3.5-397b-a17b", True),
        ("/models/Meta-Llama-3-8B-Instruct", None, "llama-3-8b", True),
        ("meta-llama/Llama-2-7b-hf", None, "llama-2-7b", True),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", None, "llama-3.1-8b", True),
        ("amd/Llama-3.3-70B-Instruct-FP8-KV", None, "llama-3.3-70b", True),
        ("TheBloke/Mistral-7B-Instruct-v0.1-GPTQ", None, "mistral-7b-v0.1", True),
        ("models--meta-llama--Llama-3.1-8B-Instruct/snapshots/0e9e39f", None, "llama-3.1-8b", True),
        ("/models/gguf/Llama-3.2-1B-Instruct-Q4_K_M.gguf", 1_235_814_432, "llama-3.2-1b", True),
        ("gpt-oss-20b/gpt-oss-20b-mxfp4.gguf", None, "gpt-oss-20b", True),
        ("gpt-oss 20B MXFP4 MoE", 20_914_757_184, "gpt-oss-20b", True),
        ("llama 1B Q4_K - Medium", 1_235_814_432, "llama-3.2-1b", False),
        ("qwen35 27B Q8_0", 26_895_998_464, "qwen3.5-27b", False),
        ("llama2-70b-99.9", None, "llama-2-70b", True),
    ],
)
def test_models_in_a_files_own_words(catalog: Catalog, hint: str, count: float | None, id_: str, certain: bool) -> None:
    guess = catalog.guess_model(hint, count)
    assert guess is not None
    assert (guess.id, guess.certain) == (id_, certain)


@pytest.mark.parametrize(
    ("hint", "count"),
    [
        ("", None),
        ("mock", None),
        ("Qwen", None),
        ("llama 1B Q4_K - Medium", None),
        ("llama 7B Q4_0", 6_738_415_616),  # LLaMA and Llama 2 have one size
        ("llama 8B Q8_0", 8_030_261_248),  # so have Llama 3 and 3.1
        ("qwen2 7B Q4_0", None),  # Qwen2 and Qwen2.5 share the architecture name
        ("Qwen3.6-27B-MTP-GGUF/Qwen3.6-27B-UD-Q8_K_XL.gguf", None),
        ("Step-3.5-Flash-REAP-128B-A11B-Q4_K_M.gguf-00001-of-00004.gguf", None),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", None),
        ("NousResearch/Hermes-3-Llama-3.1-8B", None),
        ("mistralai/Mistral-7B-Instruct-v0.2", None),  # another window than v0.1, another vocabulary than v0.3
        ("Qwen/Qwen2.5-Coder-7B", None),
        ("meta-llama/Llama-3.1-8B", 70e9),  # the file says that it is something else
    ],
)
def test_a_doubtful_model_is_not_guessed(catalog: Catalog, hint: str, count: float | None) -> None:
    assert catalog.guess_model(hint, count) is None
