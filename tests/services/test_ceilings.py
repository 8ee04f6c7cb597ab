"""What the probe found becomes the achievable ceilings of a profile, with the run as their source."""

from __future__ import annotations

import json
import math
from importlib import resources

import pytest
from fastapi.testclient import TestClient

from app.domain.errors import InvalidInput
from app.probe import source_text
from app.probe.bytebound_probe import ceilings_of, row, run_of
from app.services.catalogue import get_hardware
from app.services.ceilings import measured_ceilings, take_ceilings
from app.services.context import Context
from app.services.runs import get_view
from app.services.upload_run import upload_file
from tests.services.native_runs import native

PROBED = (resources.files("app.catalog") / "data" / "examples" / "probe-h200-two-devices.json").read_bytes()


def probed(context: Context) -> str:
    (run,) = upload_file(context, PROBED, "probe.json").runs
    return run.id


def test_the_best_of_each_kind_is_its_ceiling():
    rows = [
        row("gemm bf16 4096", "GEMM", (2e-4, 1e-4, 3e-4), flop=2 * 4096.0**3, hbm_bytes=1e8, precision="bf16"),
        row("gemm bf16 8192", "GEMM", (1.5e-3, 1e-3, 2e-3), flop=2 * 8192.0**3, hbm_bytes=4e8, precision="bf16"),
        row("gemm bf16 8192 held", "GEMM", (1e-6, 1e-6, 1e-6), flop=2 * 8192.0**3, precision="bf16", sustained=True),
        row("memory copy 64 MiB", "copy/layout", (4e-5, 4e-5, 5e-5), hbm_bytes=128 * 2**20),
        row("memory triad 64 MiB", "elementwise", (5e-5, 5e-5, 5e-5), hbm_bytes=192 * 2**20),
        row("cache triad 8 MiB", "elementwise", (4e-6, 4e-6, 5e-6), l2_bytes=24 * 2**20),
        row("eager launch, queued on the device", "other", (1.7e-6, 1.6e-6, 1.8e-6)),
    ]  # fmt: skip
    best = ceilings_of(rows)
    assert best["achievable.flop_per_s.bf16"] == pytest.approx(2 * 8192**3 / 1.5e-3)
    assert best["achievable.memory_bandwidth_bytes_per_s"] == pytest.approx(192 * 2**20 / 5e-5)
    assert best["achievable.l2_bandwidth_bytes_per_s"] == pytest.approx(24 * 2**20 / 4e-6)
    assert best["launch_overhead_s"] == 1.6e-6
    about = {"device": "Some GPU", "gpu": True, "devices": 1, "software": {}, "facts": {}, "skipped": []}
    assert run_of(about, rows)["evidence"] == best
    cpu = run_of({**about, "gpu": False, "device": "CPU: some"}, rows)
    assert cpu["evidence"] == {}, "a processor's numbers are no ceilings of a device"
    assert "CPU numbers" in cpu["notes"]
    assert "hardware" not in cpu


def test_the_shipped_probe_stays_below_what_bounds_it(context: Context):
    """Nothing that the probe measured on a real device beats the vendor's peaks, nor the floor of a launch."""
    view = get_view(context, probed(context))
    assert view.hardware is not None
    assert view.hardware.id == "nvidia-h200-sxm"
    found = {ceiling.figure: ceiling for ceiling in measured_ceilings(view.run.parsed, view.hardware)}
    assert {"achievable.flop_per_s.fp8", "achievable.scale_up_bus_bandwidth_bytes_per_s"} <= found.keys()
    for ceiling in found.values():
        if ceiling.peak is not None:
            assert 0.4 < ceiling.measured / ceiling.peak < 1, ceiling.figure
    assert found["launch_overhead_s"].measured > (view.hardware.launch_overhead or math.inf)
    for kernel in view.run.parsed.kernels:
        if kernel.get("hbm_bytes") and kernel["family"] != "GEMM":
            assert kernel["hbm_bytes"] / kernel["time_s"] < view.hardware.memory_bandwidth


def test_a_shipped_profile_is_copied_and_the_run_is_the_source(context: Context):
    run_id = probed(context)
    entry, made = take_ceilings(context, run_id)
    assert made
    assert entry.profile.name == "H200 SXM 141GB, measured"
    assert entry.profile.aliases == ()
    assert entry.profile.achievable_flop["bf16"] == pytest.approx(713.07e12, rel=1e-4)
    for figure in ("achievable.flop_per_s.bf16", "achievable.flop_per_s.tf32", "launch_overhead_s"):
        (source,) = entry.profile.sources_of(figure)
        assert (source.read, source.url) == ("measured", f"/runs/{run_id}")
    assert entry.profile.sources_of("peak.flop_per_s.bf16")[0].read == "secondary", "peaks keep their sources"
    assert get_hardware(context, "H200 SXM").id == "nvidia-h200-sxm", "the shipped one is still found by its names"
    view = get_view(context, run_id)
    assert view.hardware is not None
    assert view.hardware.id == entry.id

    again, made = take_ceilings(context, run_id, figures=["achievable.flop_per_s.fp8"])
    assert not made, "an own profile is changed"
    assert (again.id, again.revision) == (entry.id, 2)
    assert again.profile.sources_of("launch_overhead_s")[0].read == "measured", "figures beside it keep their source"


def test_what_cannot_be_taken_is_told(context: Context):
    run_id = probed(context)
    with pytest.raises(InvalidInput, match="did not measure"):
        take_ceilings(context, run_id, figures=["peak.flop_per_s.bf16"])
    with pytest.raises(InvalidInput, match="choose at least one"):
        take_ceilings(context, run_id, figures=[])
    (plain,) = upload_file(context, native(), "plain.json").runs
    with pytest.raises(InvalidInput, match="no measured ceilings"):
        take_ceilings(context, plain.id)


def test_page_and_api_take_them(client: TestClient, context: Context):
    run_id = probed(context)
    assert "Take the ceilings" in client.get(f"/runs/{run_id}").text
    page = client.get(f"/runs/{run_id}/ceilings").text
    assert page.count('type="checkbox" name="figure:') == 10
    sent = {"hardware": "nvidia-h200-sxm", "figure:launch_overhead_s": "1", "name": "<b>Ours</b>"}
    answer = client.post(f"/runs/{run_id}/ceilings", data=sent, follow_redirects=False)
    assert answer.status_code == 303
    own = client.get(answer.headers["location"]).text
    assert "&lt;b&gt;Ours&lt;/b&gt;" in own
    assert f'href="/runs/{run_id}"' in own
    assert client.post(f"/runs/{run_id}/ceilings", data={"hardware": "nvidia-h200-sxm"}).status_code == 422
    assert client.post(f"/runs/{run_id}/ceilings", data=sent).status_code == 409, "the name is taken"

    body = {"run": run_id, "figures": ["achievable.flop_per_s.bf16"], "name": "By the API"}
    made = client.post("/api/v1/hardware/nvidia-h200-sxm/ceilings", json=body)
    assert made.status_code == 201
    assert made.json()["achievable"]["flop_per_s"]["bf16"] == pytest.approx(713.07e12, rel=1e-4)
    changed = client.post(made.headers["location"] + "/ceilings", json={"run": run_id})
    assert changed.status_code == 200
    assert client.post("/api/v1/hardware/abacus/ceilings", json=body).status_code in (404, 422)
    assert client.post("/api/v1/hardware/nvidia-h200-sxm/ceilings", json={"run": "nothing"}).status_code == 404


def test_the_probe_can_be_downloaded_and_stands_alone(client: TestClient):
    answer = client.get("/probe/bytebound_probe.py")
    assert answer.text == source_text()
    compile(answer.text, "bytebound_probe.py", "exec")
    assert "import app" not in answer.text
    assert "from app" not in answer.text
    assert "/probe/bytebound_probe.py" in client.get("/probe").text
    assert json.loads(PROBED)["bytebound"] == 1
