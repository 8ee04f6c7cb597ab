"""Samples the per-operation tables of the `aiconfigurator-core` wheel into a file of carried measurements.

    pip download --no-deps aiconfigurator-core
    python tools/kernel_tables.py aiconfigurator_core-*.whl

Needs pyarrow, which the project itself does not. The wheel (Apache-2.0) holds some hundred thousand kernel times; a
sample of equal ranks in time, for each device, engine and precision, says as much about few parameters. Only A100,
H100, B200 and GB200 are read: the tables of other devices stay unseen, to hold forecasts against. Rows that are faster
than the bound allows are counted and left out: weights that stay in cache between calls, or a faulty collection.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from app.catalog.loader import load_catalog
from app.catalog.measurements import Measurement, MeasurementSource
from app.services.measured import bound_of_measurement

FILE = Path(__file__).resolve().parent.parent / "app" / "catalog" / "data" / "measurements" / "kernel-tables.json"
DEVICES = {
    "a100_sxm": "nvidia-a100-sxm4-80gb",
    "h100_sxm": "nvidia-h100-sxm",
    "b200_sxm": "nvidia-b200-sxm",
    "gb200": "nvidia-gb200",
}
PRECISIONS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8",
    "fp8_static": "fp8",
    "nvfp4": "nvfp4",
    "int8_wo": None,
}
KEPT: dict[str, int] = {
    "gemm_perf": 10,
    "context_attention_perf": 10,
    "generation_attention_perf": 10,
    "moe_perf": 10,
    "encoder_attention_perf": 8,
    "context_mla_perf": 6,
    "generation_mla_perf": 8,
    "mla_bmm_perf": 6,
    "nccl_perf": 8,
}
"""Rows of each device, engine and precision (or collective), by table."""
LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}
COLLECTIVES = {"all_gather": "all_gather", "alltoall": "all_to_all", "reduce_scatter": "reduce_scatter"}
COLLECTIVES["all_reduce"] = "all_reduce"
REDUCING_SWITCH = ("h100_sxm", "b200_sxm", "gb200")
FULL_NODE = {"gb200": 72}
UNGATED = {(512, 22), (128, 6)}
"""Experts and choices of models whose experts have two matrices instead of three: the tables do not say which."""
HOST_BOUND = {("vllm 0.24.0", "gemm_perf", "fp8_block")}
"""Collections whose smallest products take 57 us (H100) to 290 us (GB200), those of other engines 4 to 6: the host was
timed, not the product."""
READS_KEYS_ONLY = ("trtllm/1.0.0/generation", "trtllm/1.2.0", "trtllm/1.3.0rc10/generation")
"""Collections whose decode attention is faster than memory: they probably read keys and not values."""


def tables(wheel: Path) -> Iterator[tuple[str, str, str, list[dict[str, Any]]]]:
    """Device, engine with version, table and its rows: the newest collection of each engine."""
    # Not a dependency of the project: who runs this tool installs it.
    parquet = importlib.import_module("pyarrow.parquet")

    with zipfile.ZipFile(wheel) as archive:
        newest: dict[tuple[str, str, str], str] = {}
        for name in sorted(archive.namelist()):
            match = re.search(r"systems/data/(\w+)/\w+/(\w+)/([^/]+)/(\w+)\.parquet$", name)
            if match and match[1] in DEVICES and match[4] in KEPT and not any(bad in name for bad in READS_KEYS_ONLY):
                newest[match[1], match[2], match[4]] = name
        for (device, engine, table), name in sorted(newest.items()):
            version = name.split("/")[-2]
            rows = parquet.read_table(io.BytesIO(archive.read(name))).to_pylist()
            yield device, f"{engine} {version}", table, rows


def other_question(device: str, table: str, row: dict[str, Any]) -> tuple[str, str, dict[str, Any]] | None:
    """The same for tables of attention over latents and without a mask, of batched products and of collectives."""
    if table == "nccl_perf":
        # sizes are counted in elements; smaller ones take the same time as the smallest of these
        kind = COLLECTIVES.get(row["op_name"])
        if kind is None or row["nccl_dtype"] != "half" or row["message_size"] < 2**13:
            return None
        nodes = FULL_NODE.get(device, 8)
        sizes = {"size": 2 * row["message_size"], "ranks": row["num_gpus"], "ranks_per_node": nodes}
        return "collective", kind, {"op": "collective", "kind": kind, **sizes, "in_switch": device in REDUCING_SWITCH}
    if table == "mla_bmm_perf":
        dtype = PRECISIONS.get(row["bmm_dtype"])
        if dtype is None:
            return None
        n, k = (512, 128) if row["op_name"] == "mla_gen_pre" else (128, 512)
        sides = {"m": row["num_tokens"], "n": n, "k": k}
        return "gemm, batched", row["bmm_dtype"], {"op": "gemm", **sides, "dtype": dtype, "batch": row["num_heads"]}
    attention = {"op": "attention", "batch": row["batch_size"], "seq_q": row["isl"], "seq_kv": row["isl"]}
    heads = {"heads": row["num_heads"], "kv_heads": row["num_heads"]}
    if table == "encoder_attention_perf":
        width = {"head_dim": row["head_dim"], "causal": False, "dtype": PRECISIONS[row["attn_dtype"]]}
        return ("attention, encoder", row["attn_dtype"], {**attention, **heads, **width}) if row["isl"] >= 64 else None
    if row["mla_dtype"] != "bfloat16":
        return None
    if table == "context_mla_perf":
        if row["step"] or row["isl"] < 128:
            return None
        width = {"head_dim": 192, "v_head_dim": 128, "dtype": "bf16"}
        return "attention, prefill of latents", row["kv_cache_dtype"], {**attention, **heads, **width}
    if row["step"] < 127:
        return None
    layer = {"layer": "latent attention", "tokens": row["batch_size"], "context_len": row["step"]}
    dtypes = {"dtypes": {"kv": PRECISIONS[row["kv_cache_dtype"]]}}
    dims = {"dims": {"heads": row["num_heads"], **LATENT}}
    return "attention, decode latent", row["kv_cache_dtype"], {**layer, **dims, **dtypes}


def question(device: str, table: str, row: dict[str, Any]) -> tuple[str, str, dict[str, Any]] | None:
    """Kind, precision and question of a row, or None where it is none of ours."""
    if table not in ("gemm_perf", "context_attention_perf", "generation_attention_perf", "moe_perf"):
        return other_question(device, table, row)
    if table == "gemm_perf":
        dtype = PRECISIONS.get(row["gemm_dtype"])
        if dtype is None or min(row["n"], row["k"]) < 256:
            return None
        return "gemm", row["gemm_dtype"], {"op": "gemm", "m": row["m"], "n": row["n"], "k": row["k"], "dtype": dtype}
    if table == "moe_perf":
        dtype = PRECISIONS.get(row["moe_dtype"])
        inner, tensor = row["inter_size"], row["moe_tp_size"]
        if dtype is None or row["distribution"] != "balanced" or inner % tensor or row["moe_ep_size"] > 16:
            return None
        if (row["num_experts"], row["topk"]) in UNGATED:
            return None
        asked: dict[str, Any] = {
            "layer": "moe",
            "tokens": row["num_tokens"],
            "hidden": row["hidden_size"],
            "experts": row["num_experts"],
            "top_k": row["topk"],
            "expert_intermediate": inner // tensor,
            "dtypes": {"weights": dtype, "activations": dtype},
        }
        if row["moe_ep_size"] > 1:
            asked["ep"] = row["moe_ep_size"]
        return "moe layer", row["moe_dtype"], asked
    decode = table.startswith("generation")
    dtype = PRECISIONS.get(row["kv_cache_dtype"] if decode else row["attn_dtype"])
    kv_heads = row["num_key_value_heads"] or row["num_heads"]
    if dtype is None or row.get("window_size") or row["num_heads"] % kv_heads or row["beam_width"] != 1:
        return None
    if not decode and row["step"]:
        return None
    keys = row["step"] + 1 if decode else row["isl"]
    if keys < 128:
        return None
    return (
        "attention, decode" if decode else "attention, forward",
        f"{row['attn_dtype']} {row['kv_cache_dtype']}",
        {
            "op": "attention",
            "batch": row["batch_size"],
            "seq_q": 1 if decode else keys,
            "seq_kv": keys,
            "heads": row["num_heads"],
            "kv_heads": kv_heads,
            "head_dim": row["head_dim"],
            "dtype": dtype,
        },
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    options = parser.parse_args(arguments)
    catalog = load_catalog()
    version = re.search(r"-(\d[\w.]*)-", options.wheel.name)
    title = f"aiconfigurator-core {version[1] if version else ''}, per-operation tables (Apache-2.0)"
    source = MeasurementSource(title, "https://github.com/ai-dynamo/aiconfigurator", "primary")
    written: list[dict[str, Any]] = []
    faster: Counter[str] = Counter()
    host_bound: Counter[str] = Counter()
    for device, engine, table, rows in tables(options.wheel):
        groups: dict[str, list[tuple[float, str, dict[str, Any]]]] = {}
        for row in rows:
            found = question(device, table, row)
            if found is not None and row["latency"] > 0:
                groups.setdefault(found[1], []).append((row["latency"] * 1e-3, found[0], found[2]))
        for precision, members in sorted(groups.items()):
            if (engine, table, precision) in HOST_BOUND:
                host_bound[members[0][1]] += min(KEPT[table], len(members))
                continue
            members.sort(key=lambda item: (item[0], json.dumps(item[2])))
            kept = KEPT[table]
            ranks = [int((i + 0.5) * len(members) / kept) for i in range(min(kept, len(members)))]
            for rank in ranks:
                seconds, kind, asked = members[rank]
                name = f"table-{device}-{engine.replace(' ', '-')}-{table.removesuffix('_perf')}-{precision}-{rank}"
                row_ = Measurement(
                    name, "kernel-tables", kind, DEVICES[device], asked, seconds, source, f"{seconds * 1e3:g} ms"
                )
                if seconds < float(bound_of_measurement(row_, catalog).overlapped):
                    faster[kind] += 1
                    continue
                written.append(
                    {
                        "id": name.replace(" ", "-"),
                        "kind": kind,
                        "hardware": DEVICES[device],
                        "question": asked,
                        "seconds": float(f"{seconds:.6g}"),
                        "source": "kernel-tables",
                        "published": f"{seconds * 1e3:.6g} ms",
                        "engine": engine,
                    }
                )
    left = [
        {"why": "faster than the bound: cached between calls, or a faulty collection", "kinds": dict(faster)},
        {"why": "the host was timed, not the product", "kinds": dict(host_bound)},
    ]
    text = (
        '{\n"sources": '
        + json.dumps({"kernel-tables": {"title": title, "url": source.url, "read": source.read}})
        + ',\n"left_out": '
        + json.dumps(left)
        + ',\n"rows": [\n'
        + ",\n".join(json.dumps(row) for row in written)
        + "\n]\n}\n"
    )
    FILE.write_text(text, encoding="utf-8")
    print(f"{len(written)} rows of {source.title}; left out: {dict(faster)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
