"""Charts about communication: every mark stands in the table twin, names are escaped, lanes are in order."""

from __future__ import annotations

from typing import Any

from app.charts.communication import Bar, binary_size, chunk_curve, collective_over_sizes, timeline

SIZES = [2.0**10, 2.0**20, 2.0**30]
ANSWER: dict[str, Any] = {
    "algorithm": "tree",
    "ranks": 8,
    "ranks_per_node": 8,
    "algorithms": [
        {"algorithm": "ring", "available": True},
        {"algorithm": "tree", "available": True},
        {"algorithm": "in_switch", "available": False},
    ],
    "sizes": [
        {
            "bytes": size,
            "bound_s": size / 1e11,
            "bound_bus_bandwidth_bytes_per_s": 1.75e11,
            "algorithms": {
                name: {"time_s": 1e-5 + size / 1e11, "bus_bandwidth_bytes_per_s": 1.75 * size / (1e-5 + size / 1e11)}
                for name in ("ring", "tree")
            },
        }
        for size in SIZES
    ],
    "measured": [
        {
            "bytes": 2.0**20,
            "ranks": 8,
            "time_s": 3e-5,
            "bus_bandwidth_bytes_per_s": 6.1e10,
            "name": "<b>run</b>",
            "source": "uploaded run",
            "url": "/runs/1",
            "uploaded": True,
        }
    ],
}


def test_a_collective_over_sizes_shows_bound_algorithms_and_measurements() -> None:
    spec = collective_over_sizes(ANSWER, what="time", title="t", caption="c")
    assert [trace["name"] for trace in spec.data] == ["Bound", "Ring", "Tree", "Uploaded, 8 ranks"]
    assert spec.data[0]["y"][1] == 2.0**20 / 1e11 / 1e-6  # us
    assert spec.data[3]["text"] == ["&lt;b&gt;run&lt;/b&gt;<br>8 ranks, 1 MiB: 30 µs"]
    assert len(spec.table["rows"]) == 4
    assert spec.table["rows"][-1][4] == 3e-5
    bus = collective_over_sizes(ANSWER, what="bus", title="t", caption="c")
    assert bus.data[3]["y"] == [61.0]  # GB/s
    # what was measured in one node is no measurement of links between nodes
    across = collective_over_sizes(ANSWER | {"ranks": 32}, what="bus", title="t", caption="c")
    assert [trace["name"] for trace in across.data] == ["Bound", "Ring", "Tree"]


def test_a_timeline_keeps_its_lanes_in_order() -> None:
    bars = [Bar("b", "F", 0.0, 1.0, "1"), Bar("a", "B", 1.0, 3.0, "<i>")]
    spec = timeline(bars, ["a", "b"], title="t", marks=[(2.0, "here")])
    assert spec.layout["yaxis"]["categoryarray"] == ["a", "b"]
    assert [(trace["name"], trace["base"], trace["x"]) for trace in spec.data] == [
        ("Forward", [0.0], [1.0]),
        ("Backward", [1.0], [2.0]),
    ]
    assert "<i>" not in str(spec.data[1]["text"])
    assert spec.layout["shapes"][0]["x0"] == 2.0
    assert spec.table["rows"][1] == ["a", "Backward", "<i>", 1.0, 3.0]


def test_the_curve_marks_its_best() -> None:
    answer = {
        "chunk_counts": [
            {"chunks": 1, "time_s": 3e-3, "waves_of_a_chunk": 4},
            {"chunks": 2, "time_s": 2e-3, "waves_of_a_chunk": 2},
            {"chunks": 4, "time_s": 4e-3, "waves_of_a_chunk": None},
        ],
        "levels": [{"level": "L0", "time_s": 3e-3}],
        "best_chunks": 2,
        "compute_only_s": 1e-3,
    }
    spec = chunk_curve(answer, title="t")
    assert spec.data[-1]["x"] == [2]
    assert spec.data[-1]["y"] == [2.0]
    assert spec.table["rows"][1] == [2, 2e-3, 1e-3, 2]


def test_sizes_in_words() -> None:
    assert [binary_size(size) for size in (1.0, 2.0**10, 1.5 * 2**20, 2.0**34)] == ["1 B", "1 KiB", "1.5 MiB", "16 GiB"]
