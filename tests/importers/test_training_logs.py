"""Training logs: the figures of real files, the warm-up rule, and the ways in which logs are dirty."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.domain.run import ParsedRun
from app.importers.base import ParsedUpload, UnreadableUpload
from app.importers.logs import MOST_SAMPLES, Values, log_number, warm_up_steps
from app.importers.reading import Limits
from app.importers.registry import parse_upload

from .fixture_files import checks, data, upload, values

Find = dict[str, Any]


def one(text: str) -> ParsedRun:
    (run,) = parse_upload(text.encode()).runs
    return run


def steps_of(run: ParsedRun) -> dict[str, int]:
    return {key: n for key, n in run.workload.extra["steps"].items() if key != "steady_from"}


# --- real files ----------------------------------------------------------------------------------------------------


def test_mllog_has_its_time_to_train() -> None:
    for name, minutes, lines, accuracy in (
        ("1.txt", 18.51015, 46, 0.924252450466156),
        ("2.txt", 3.41775, 142, 0.9227800314137012),
    ):
        (run,) = upload(f"mlperf-mllog/{name}").runs
        assert run.value("duration_s") == pytest.approx(minutes * 60, rel=1e-9)
        assert run.workload.extra["mllog_lines"] == lines
        assert run.workload.extra["last_eval_accuracy"] == run.value("loss") == accuracy
        assert run.workload.extra["global_batch"] == 8
        assert run.workload.extra["status"] == "success"
        assert run.model_hint == "llama2_70b_lora"
    assert upload("mlperf-mllog/1.txt").runs[0].hardware_hint == "MI325X"
    assert run.hardware_hint == "GB200"
    # step times are tracked between evaluations; every block counts, warm-up lies before run_start
    assert run.samples["step_time_s"][-1] == 0.41696282543731894


def test_megatron_deepspeed_log() -> None:
    (run,) = upload("megatron-log/1.txt").runs
    assert steps_of(run) == {"logged": 5, "first": 1, "last": 5, "warm_up": 2}
    assert run.workload.extra["warm_up_step_time_s"][0] == pytest.approx(76.0153)
    assert run.samples["step_time_s"][-1] == pytest.approx(74.4949)
    assert run.samples["model_flop_per_s_per_device"][-1] == pytest.approx(150.62e12)
    assert run.samples["samples_per_s"][-1] == 27.492
    assert run.workload.extra["global_batch"] == 2048
    assert run.workload.input_len == 2048
    assert run.value("total_tokens_per_s") == pytest.approx(2048 * 2048 / run.value("step_time_s"))  # type: ignore[operator]
    assert run.value("peak_memory_bytes") == pytest.approx(68581.8095703125 * 2**20)
    assert run.software == {"framework": "Megatron-DeepSpeed", "DeepSpeed": "0.12.3"}


def test_old_megatron_log() -> None:
    (run,) = upload("megatron-log/2.txt").runs
    assert steps_of(run) == {"logged": 49, "first": 1, "last": 49, "warm_up": 4}
    assert run.workload.extra["warm_up_step_time_s"][0] == pytest.approx(159.7789)
    assert run.samples["step_time_s"][-1] == pytest.approx(136.3288)
    assert run.workload.extra["global_batch"] == 1024
    assert "model_flop_per_s_per_device" not in {m.name for m in run.metrics}
    mean = next(m for m in run.metrics if m.key == "step_time_s.mean")
    assert (mean.count, mean.pointer, mean.raw) == (45, "line 5 to line 49", "computed from 45 steps")


def test_golden_values() -> None:
    (run,) = upload("megatron-golden-values/1.json").runs
    assert run.workload.extra["warm_up_step_time_s"][0] == 15.6569
    assert run.samples["step_time_s"][-1] == 0.23369
    assert run.value("peak_memory_bytes") == 34308540416
    told = json.loads(data("megatron-golden-values/1.json"))
    peak = next(m for m in run.metrics if m.name == "peak_memory_bytes")
    _, series, _, step = peak.pointer.split("/")
    assert told[series]["values"][step] == peak.value


def test_golden_values_as_lists_and_with_nan() -> None:
    old = {
        "lm loss": {
            "start_step": 0,
            "end_step": 34,
            "step_interval": 5,
            "values": [10.8, 10.7, 10.5, 9.9, 9.5, 9.0, 8],
        },
        "iteration-time": {"start_step": 0, "end_step": 35, "values": ["nan", 9.0, 0.5, 0.4, 0.4, 0.4, 0.4]},
        "iteration_timing_avg": 0.42,
    }
    run = one(json.dumps(old))
    assert run.value("loss") == 8
    assert steps_of(run) == {"logged": 7, "first": 0, "last": 30, "warm_up": 2}
    assert run.value("step_time_s", "min") == 0.4
    assert "non-finite" not in checks(run)


@pytest.mark.parametrize(
    ("file", "memory", "rate", "mfu"), [("1.txt", 68.57, 6785, 0.3973), ("2.txt", 63.48, 7865, 0.4606)]
)
def test_torchtitan_counts_a_step_once(file: str, memory: float, rate: float, mfu: float) -> None:
    (run,) = upload(f"torchtitan-log/{file}").runs
    found = values(run)
    assert found["tokens_per_s_per_device"] == rate
    assert found["mfu"] == pytest.approx(mfu)
    assert found["peak_memory_bytes"] == pytest.approx(memory * 2**30)
    assert run.workload.extra["steps"]["last"] == 1990
    assert "8 line(s) repeat a step" in " ".join(f.message for f in run.findings)


def test_maxtext_leaves_the_compiling_steps_out() -> None:
    (run,) = upload("maxtext-log/1.txt").runs
    assert steps_of(run) == {"logged": 10, "first": 0, "last": 9, "warm_up": 2}
    assert run.samples["step_time_s"][-1] == 5.667
    assert run.samples["model_flop_per_s_per_device"][-1] == pytest.approx(134.924e12)
    assert run.samples["tokens_per_s_per_device"][-1] == 8672.758
    assert run.value("model_flop_per_s_per_device", "max") == pytest.approx(141.542e12)
    assert run.value("loss") == 10.374


def test_trainer_state_without_an_end() -> None:
    (run,) = upload("hf-trainer-state/1.json").runs
    extra = run.workload.extra
    assert (extra["global_step"], extra["log_entries"], extra["total_flop"]) == (12030, 216, 2.3847568878600192e17)
    assert run.workload.batch == 4
    assert [e["name"] for e in extra["evaluations"]] == [f"eval_g{n}" for n in range(6)]
    assert extra["evaluations"][-1]["samples_per_s"] == 60.429
    assert "not-finished" in checks(run)
    assert "step_time_s" not in {m.name for m in run.metrics}
    assert "total_tokens_per_s" not in {m.name for m in run.metrics}  # num_input_tokens_seen 0 means not counted


# --- numbers and statistics ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "grouped", "value"),
    [
        ("6,785", True, 6785),
        ("6,785", False, 6.785),
        ("1,234,567", False, 1234567),
        ("1.234,5", False, 1234.5),
        ("1,234.5", False, 1234.5),
        ("1 234", False, 1234),
        ("1.1E+01", False, 11),
        ("-0,5", True, -0.5),
    ],
)
def test_numbers_of_any_locale(written: str, grouped: bool, value: float) -> None:
    assert log_number(written, grouped=grouped) == value


def test_no_number_is_none() -> None:
    assert log_number("N/A") is None
    assert log_number("1" * 100) is None
    assert log_number(None) is None


def test_warm_up_rule() -> None:
    assert [warm_up_steps(n) for n in (1, 2, 3, 4, 10, 20, 49, 100, 5000)] == [0, 1, 1, 2, 2, 2, 4, 10, 10]


def test_values_stay_bounded_and_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.importers.logs.MOST_KEPT", 100)
    many = Values()
    for n in range(10_001):
        many.add(float(n))
    found = many.statistics()
    assert len(many.kept) <= 100
    assert (found["mean"], found["min"], found["max"]) == (pytest.approx(5000), 0, 10_000)
    assert found["p50"] == pytest.approx(5000, rel=0.02)
    assert found["std"] == pytest.approx(2887.2, rel=1e-3)


def test_a_long_log_keeps_few_samples_with_the_last_one() -> None:
    lines = [
        f" iteration {n}/ 9000 | elapsed time per iteration (ms): {1000 if n > 10 else 9000}.{n % 10} | lm loss: 2.0 |"
        for n in range(1, 9001)
    ]
    run = one("\n".join(lines))
    assert steps_of(run) == {"logged": 9000, "first": 1, "last": 9000, "warm_up": 10}
    assert len(run.samples["step_time_s"]) <= MOST_SAMPLES
    mean = next(m for m in run.metrics if m.key == "step_time_s.mean")
    assert (mean.count, mean.value) == (8990, pytest.approx(1.00045))


# --- dirty logs ----------------------------------------------------------------------------------------------------

MEGATRON = """\
using world size: 16, data-parallel-size: 2, context-parallel-size: 1, tensor-model-parallel size: 4, \
pipeline-model-parallel size: 2
------------------------ arguments ------------------------
  bf16 ............................................ True
  context_parallel_size ........................... 1
  expert_model_parallel_size ...................... 1
  global_batch_size ............................... 128
  load ............................................ gs://anna/secret/ckpt
  micro_batch_size ................................ 2
  num_layers ...................................... 32
  optimizer ....................................... adam
  recompute_granularity ........................... selective
  seq_length ...................................... 4096
  sequence_parallel ............................... True
  use_distributed_optimizer ....................... True
  wandb_api_key ................................... 0123456789abcdef
-------------------- end of arguments ---------------------
"""


def iteration(n: int, ms: str = "1000.0", loss: str = "2.5", **more: str) -> str:
    extra = "".join(f" {key.replace('_', ' ')}: {value} |" for key, value in more.items())
    return (
        f" [2026-01-16 07:32:{n % 60:02d}] iteration {n:8d}/     100 | consumed samples: {n * 128:12d} | elapsed time "
        f"per iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 400.5 | learning rate: 1.0E-05 | "
        f"global batch size:   128 | lm loss: {loss} | loss scale: 1.0 |{extra} number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    )


def test_megatron_settings_and_nothing_private() -> None:
    run = one(MEGATRON + "\n".join(iteration(n) for n in range(1, 7)))
    assert run.parallel == {"tp": 4, "pp": 2, "dp": 2, "cp": 1, "ep": 1}
    assert (run.workload.batch, run.workload.input_len) == (2, 4096)
    assert run.workload.dtypes == {"weights": "bf16", "activations": "bf16"}
    extra = run.workload.extra
    assert {
        "micro_batches": 32,
        "sequence_parallel": True,
        "zero_stage": 1,
        "recompute": "selective",
    }.items() <= extra.items()
    assert extra["optimizer"] == "adamw"
    assert extra["devices"] == 16
    assert run.value("tokens_per_s_per_device") == pytest.approx(128 * 4096 / 1.0 / 16)
    assert run.measured_at == "2026-01-16 07:32:01"
    shown = repr(run)
    assert "anna" not in shown
    assert "0123456789abcdef" not in shown


def test_megatron_odd_lines() -> None:
    lines = [
        "\x1b[32m0: " + iteration(1, "60000.0") + "\x1b[0m",
        "[1,0]<stdout>:" + iteration(2) + iteration(3, loss="nan"),  # run on without a newline
        "[rank-7/8][INFO ] : iteration 4/ 100 | elapsed time per iteration (ms): 1000.0/999.0 | hip mem "
        "usage/free/total/usage_ratio: 153.81GB/102.17GB/255.98GB/60.09% | throughput per GPU (TFLOP/s/GPU): "
        "567.6/568.0 | tokens per GPU (tokens/s/GPU): 9801.4/9807.3 | lm loss: 6.5E-03 |",
        iteration(5, "1.000,0"),
        iteration(6)[:60],
    ]
    found: ParsedUpload = parse_upload(("\ufeff" + "\r\n".join(lines)).encode())
    (run,) = found.runs
    assert steps_of(run) == {"logged": 5, "first": 1, "last": 5, "warm_up": 2}
    assert run.value("step_time_s", "max") == 1.0
    assert run.value("loss") == 2.5
    assert run.value("peak_memory_bytes") == pytest.approx(153.81 * 2**30)
    assert {"non-finite", "cut-off", "warm-up-left-out"} <= checks(run) | {f.check for f in found.findings}


def test_an_appended_run_is_a_run_of_its_own() -> None:
    text = MEGATRON + "\n".join(iteration(n) for n in range(1, 9)) + "\n" + MEGATRON.replace("True", "False")
    text += "\n".join(iteration(n, "900.0") for n in range(1, 9))
    first, second = parse_upload(text.encode()).runs
    assert (first.name, second.name) == (
        "Megatron training, 128 sequences a step, run 1",
        "Megatron training, 128 sequences a step, run 2",
    )
    assert (first.value("step_time_s"), second.value("step_time_s")) == (1.0, 0.9)
    assert first.workload.dtypes
    assert not second.workload.dtypes
    assert (first.series, second.series) == ({"run": 1.0}, {"run": 2.0})


TITAN = """\
[rank0]:[titan] 2026-01-09 19:01:10,186 - root - INFO - Starting job: Llama 3 8B training
[rank0]:[titan] 2026-01-09 19:01:11,186 - root - INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]
[rank0]:[titan] 2026-01-09 19:01:15,186 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.18GiB memory
[rank0]:[titan] 2026-01-09 19:01:15,198 - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters
[rank0]:[titan] 2026-01-09 19:01:15,198 - root - INFO - Applied selective activation checkpointing to the model
[rank0]:[titan] 2026-01-09 19:01:15,281 - root - INFO - Peak FLOPS used for computing MFU: 9.890e+14
[rank0]:[titan] 2026-01-09 19:01:16,000 - root - INFO - Trainer is initialized with local batch size 2, global batch \
size 8, gradient accumulation steps 1, sequence length 8192, total steps 1000 (warmup 200)
"""


def titan(n: int, tps: str = "5,000", rank: str = "0", mfu: str = "41.66%", loss: str = "9.4939") -> str:
    return (
        f"[rank{rank}]:\x1b[31mstep: {n:2}  \x1b[32mloss: {loss}  \x1b[38;2;1;2;3mgrad_norm: 18.25  memory: "
        f"72.82GiB(91.97%)  tps: {tps}  tflops: 412.06  mfu: {mfu}\x1b[39m"
    )


def test_torchtitan_settings_and_a_step_time_from_them() -> None:
    lines = [titan(n, rank=rank) for n in (1, 10, 20, 30, 40) for rank in "01"]
    run = one(TITAN + "\n".join(lines))
    assert run.parallel == {"dp": 4, "tp": 2}
    assert (run.workload.batch, run.workload.input_len, run.workload.parameters) == (2, 8192, 8030261248)
    assert (run.model_hint, run.hardware_hint) == ("llama3 8B", "NVIDIA H100 80GB HBM3")
    assert run.value("step_time_s") == pytest.approx(8 * 8192 / (5000 * 8))
    assert run.value("total_tokens_per_s") == pytest.approx(40_000)
    assert run.workload.extra["recompute"] == "selective"
    assert run.workload.extra["steps"]["logged"] == 5


def test_torchtitan_odd_values() -> None:
    lines = [titan(n, tps="5.000,5", mfu="N/A", loss="9,4939") for n in range(1, 8)]
    run = one("Peak flops undefined for: X, fallback to A100\n" + "\r\n".join(lines) + "\r\nstep: 8 loss: 9")
    assert run.value("tokens_per_s_per_device") == 5000.5
    assert run.value("loss") == 9.4939
    assert "mfu" not in {m.name for m in run.metrics}
    assert {"mfu-assumed-peak", "cut-off"} <= checks(run)


def test_maxtext_settings() -> None:
    config = {
        "dcn_data_parallelism": "2",
        "dtype": "bfloat16",
        "global_batch_size_to_train_on": "32",
        "hf_access_token": "hf_abcdefghijklmnop",
        "ici_expert_parallelism": "1",
        "ici_fsdp_parallelism": "-1",
        "ici_tensor_parallelism": "2",
        "max_target_length": "4096",
        "model_name": "llama2-7b",
        "opt_type": "adamw",
        "per_device_batch_size": "2.0",
        "remat_policy": "full",
    }
    head = "".join(f"I0317 09:59:16.24 1253 pyconfig.py:413] Config param {k}: {v}\n" for k, v in config.items())
    steps = [
        f"completed step: {n}, seconds: 2.5, TFLOP/s/device: 200,5, Tokens/s/device: 3276.8, total_weights: 131072, "
        f"loss: {loss}"
        for n, loss in enumerate(("3.0", "2.9", "2.8", "nan", "2.6", "2.5"))
    ]
    found = parse_upload((head + "\n".join(steps) + "\ncompleted step: 6, seconds: 2.5, TFL").encode())
    (run,) = found.runs
    assert run.workload.extra["devices"] == 16
    assert run.parallel == {"tp": 2, "pp": 1, "cp": 1, "ep": 1, "dp": 8}
    assert (run.workload.batch, run.workload.input_len, run.model_hint) == (4, 4096, "llama2-7b")
    assert run.workload.dtypes == {"weights": "bf16", "activations": "bf16"}
    assert run.workload.extra["recompute"] == "full"
    assert run.value("model_flop_per_s_per_device") == pytest.approx(200.5e12)
    assert run.value("loss") == 2.5
    assert {"non-finite", "cut-off"} <= checks(run) | {f.check for f in found.findings}
    assert "hf_abc" not in repr(run)


def mllog(key: str, value: object = None, time: int = 0, **metadata: object) -> str:
    event = {"namespace": "", "time_ms": time, "event_type": "X", "key": key, "value": value, "metadata": metadata}
    return ":::MLLOG " + json.dumps(event)


def test_mllog_odd_files() -> None:
    lines = [
        "+ export WANDB_API_KEY=abc",
        mllog("submission_benchmark", "bert"),
        " 3: " + mllog("run_start", time=1000),
        *(f"{rank}: " + mllog("tracked_stats", {"throughput": 10.0}, 1500, step=1) for rank in range(4)),
        mllog("eval_accuracy", 0.72, 2000, samples_count=100),
        mllog("run_stop", time=61_000, status="aborted"),
        mllog("run_start", time=70_000),
        mllog("tracked_stats", {"throughput": float("nan")}, 80_000),
        mllog("run_stop", time=100_000, status="success"),
        ':::MLLOG {"key": "eval_acc',
    ]
    found = parse_upload("\r\n".join(lines).encode())
    first, second = found.runs
    assert (first.value("duration_s"), second.value("duration_s")) == (60.0, 30.0)
    assert first.value("samples_per_s") == 10.0
    assert "run-aborted" in checks(first)
    assert "loss" not in {m.name for m in first.metrics}  # an accuracy is no loss
    assert first.workload.extra["last_eval_accuracy"] == 0.72
    assert "samples_per_s" not in {m.name for m in second.metrics}
    assert "cut-off" in checks(second)
    assert checks(found) == {"left-out"}
    assert "WANDB" not in repr(found)


def test_mllog_without_a_result_is_refused() -> None:
    with pytest.raises(UnreadableUpload) as caught:
        parse_upload(mllog("run_start", time=1).encode())
    assert caught.value.reason == "cut-off"


TRAINER = """\
***** Running training *****
  Num examples = 1,000
  Instantaneous batch size per device = 8
  Total train batch size (w. parallel, distributed & accumulation) = 128
  Gradient Accumulation steps = 2
  Total optimization steps = 80
  0%|          | 0/80 [00:00<?, ?it/s]\r 12%|# | 10/80 [00:13<01:31,  1.31s/it]
{'loss': '83.94', 'grad_norm': '2726', 'learning_rate': '0', 'epoch': '0.5'}
{'loss': nan, 'grad_norm': 2.1, 'learning_rate': 0.1, 'epoch': 1.5}\r 62%|# | 50/80 [01:05<00:41,  1.31s/it]
{'eval_loss': 0.0932, 'eval_runtime': 3.277, 'eval_samples_per_second': 6.103, 'epoch': 1.0}
"""
END = "{'train_runtime': 101.6, 'train_samples_per_second': 3.544, 'train_steps_per_second': 0.788, 'epoch': 40.0}\n"


def test_printed_trainer_log() -> None:
    run = one(TRAINER + END)
    assert run.value("step_time_s") == pytest.approx(101.6 / 80)
    assert (run.value("duration_s"), run.value("samples_per_s"), run.value("loss")) == (101.6, 3.544, 83.94)
    assert (run.workload.batch, run.workload.extra["devices"], run.workload.extra["micro_batches"]) == (8, 8, 2)
    assert {"non-finite", "whole-run-mean"} <= checks(run)
    first, second = parse_upload((TRAINER + END + TRAINER).encode()).runs
    assert first.name.endswith("run 1")
    # without an end, the progress bar times the steps
    assert second.value("step_time_s") == pytest.approx((65 - 13) / (50 - 10))
    assert "step-time-from-bar" in checks(second)


def test_trainer_results_file() -> None:
    told: Find = {
        "epoch": 3.0,
        "total_flos": 1e18,
        "train_loss": 1.5,
        "train_runtime": 1000.0,
        "train_samples_per_second": 8.0,
        "train_steps_per_second": 0.5,
        "eval_loss": float("nan"),
    }
    run = one(json.dumps(told))
    assert run.value("step_time_s") == 2.0
    assert run.value("loss") == 1.5
    assert run.workload.extra["flop_per_s_of_all_devices"] == 1e15
    assert next(m for m in run.metrics if m.name == "duration_s").pointer == "/train_runtime"


def test_a_large_log_is_read_piece_by_piece(tmp_path: Path) -> None:
    log = tmp_path / "big.log"
    with log.open("w", encoding="utf-16") as file:
        file.write(MEGATRON)
        for n in range(1, 12_001):
            file.write(iteration(n, "60000.0" if n < 3 else "1000.0") + "\n" + "NCCL INFO noise " * 4 + "\n")
    limits = Limits(max_bytes=2**20)
    assert log.stat().st_size > 8 * 2**20
    (run,) = parse_upload(log, "big.log", limits).runs
    assert run.workload.extra["steps"]["logged"] == 12_000
    assert run.value("step_time_s") == 1.0
    assert run.parallel["tp"] == 4
