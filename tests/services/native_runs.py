"""A small file in our own format, with changes."""

from __future__ import annotations

import json


def native(**changes: object) -> bytes:
    run = {
        "name": "a run",
        "hardware": "H100 SXM",
        "model": "llama-3.1-8b",
        "workload": {"phase": "decode", "batch": 1, "context_len": 100, "parallel": {"tp": 1}},
        "metrics": {"tpot_s": {"mean": 0.01, "p99": 0.02}, "decode_tokens_per_s": 100.0},
    }
    return json.dumps({"bytebound": 1, "runs": [{**run, **changes}]}).encode()
