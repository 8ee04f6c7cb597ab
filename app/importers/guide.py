"""What people need to know of each format: the tool, how it writes such a file, and what is read from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.importers import archive, table
from app.importers.registry import IMPORTERS
from app.importers.unsupported import KNOWN_UNSUPPORTED

UNTRIED = "Not yet tried on a real file: its reader was written from the tool's source or manual."


@dataclass(frozen=True, slots=True)
class Guide:
    """`make` is a command line or a sentence; `reads` says what becomes of the file."""

    tool: str
    make: str
    reads: str


GUIDES: Mapping[str, Guide] = {
    "bytebound": Guide(
        "Your own harness",
        "Write JSON by the schema at /api/v1/schema/run.json, or let `bytebound probe` write it.",
        "Metrics with statistics and samples, kernels, evidence for the diagnosis, workload, layout and software.",
    ),
    "inferencex-agg": Guide(
        "InferenceX (InferenceMAX)",
        "Take agg_*.json from the artifacts of a sweep.",
        "Throughput of a device, TTFT, TPOT and inter-token times, hardware, model, precision and layout.",
    ),
    "inferencex-result": Guide(
        "InferenceX (InferenceMAX)",
        "Take the result JSON that its serving client writes for one concurrency.",
        "Throughput, TTFT, TPOT, inter-token and end-to-end times, which stand in seconds there.",
    ),
    "vllm-bench-serve": Guide(
        "vLLM",
        "vllm bench serve --model MODEL --save-result --percentile-metrics ttft,tpot,itl,e2el",
        "Throughput, TTFT, TPOT, inter-token and end-to-end times by percentile, failed requests, single requests with "
        "--save-detailed.",
    ),
    "vllm-bench-latency": Guide(
        "vLLM",
        "vllm bench latency --model MODEL --batch-size 8 --output-json latency.json",
        "The latency of a batch: mean, percentiles and every iteration.",
    ),
    "vllm-bench-throughput": Guide(
        "vLLM",
        "vllm bench throughput --model MODEL --output-json throughput.json",
        "Requests and tokens per second of an offline run.",
    ),
    "vllm-pytorch-side-file": Guide(
        "vLLM",
        "SAVE_TO_PYTORCH_BENCHMARK_FORMAT=1 vllm bench serve ... --save-result",
        "The metrics that vLLM writes beside its own result. The plain result holds more.",
    ),
    "serving-console": Guide(
        "vLLM or SGLang",
        "vllm bench serve --model MODEL | tee serve.txt",
        "The block that a serving client prints. The file of --save-result or --output-file holds more.",
    ),
    "sglang-bench-serving": Guide(
        "SGLang",
        "python -m sglang.bench_serving --backend sglang --output-file serve.jsonl",
        "Throughput, TTFT, TPOT, inter-token and end-to-end times; every line of the file is a run.",
    ),
    "sglang-bench-one-batch": Guide(
        "SGLang",
        "python -m sglang.bench_one_batch --model-path MODEL --batch-size 1 8 32 --result-filename result.jsonl",
        "Prefill and decode times and rates by batch, input and output length.",
    ),
    "trtllm-bench": Guide(
        "TensorRT-LLM",
        "trtllm-bench --model MODEL throughput --dataset FILE --report_json report.json",
        "Throughput, request latency, TTFT and TPOT where streamed, engine, layout and precision.",
    ),
    "aiperf": Guide(
        "AIPerf",
        "aiperf profile --model MODEL --url URL --endpoint-type chat --streaming  (profile_export_aiperf.json)",
        "Every metric with its percentiles, in the unit that stands beside it.",
    ),
    "aiperf-records": Guide(
        "AIPerf",
        "aiperf profile ... --export-level records  (profile_export.jsonl)",
        "Statistics over single requests, computed here, and the spread of their lengths.",
    ),
    "genai-perf": Guide(
        "GenAI-Perf",
        "genai-perf profile -m MODEL --endpoint-type chat --streaming  (profile_export_genai_perf.json)",
        "Every metric with its percentiles, in the unit that stands beside it.",
    ),
    "genai-perf-table": Guide(
        "GenAI-Perf or AIPerf",
        "genai-perf profile ... | tee table.txt",
        "The printed table. The JSON export holds more.",
    ),
    "guidellm": Guide(
        "GuideLLM",
        "guidellm benchmark --target URL --rate-type sweep --output-path benchmarks.json",
        "One run for each rate, with TTFT, TPOT, inter-token and request times, as a sweep.",
    ),
    "optimum-benchmark": Guide(
        "optimum-benchmark",
        "optimum-benchmark --config-dir DIR --config-name NAME  (benchmark.json, or benchmark_report.json, .md, .txt)",
        "Load, prefill, decode or training times with their samples, memory and energy.",
    ),
    "llama-bench": Guide(
        "llama.cpp",
        "llama-bench -m MODEL.gguf -p 512 -n 128 -o json > bench.json",
        "Prompt processing and generation by batch, length and depth, repetitions as samples, device and quantisation.",
    ),
    "mlperf-loadgen-summary": Guide(
        "MLPerf LoadGen",
        "Take mlperf_log_summary.txt of a performance run.",
        "Scenario, throughput, latencies, TTFT and TPOT by percentile, and whether the run is valid.",
    ),
    "mlperf-mllog": Guide(
        "MLPerf training",
        "Take result_N.txt of a submission.",
        "Time to train, throughput, batch, sequence length and accuracy from the MLLOG lines.",
    ),
    "hf-trainer-state": Guide(
        "Hugging Face Trainer",
        "Take trainer_state.json from the last checkpoint, or all_results.json.",
        "Loss by step, training rate, FLOP and tokens where counted.",
    ),
    "hf-trainer-log": Guide(
        "Hugging Face Trainer",
        "python train.py 2>&1 | tee train.log",
        "The dictionaries that the Trainer prints: loss, rates and run time.",
    ),
    "megatron-log": Guide(
        "Megatron-LM and its descendants",
        "torchrun ... pretrain_gpt.py --log-throughput --log-interval 1 2>&1 | tee train.log",
        "Step times with their spread, loss, FLOP rate of a device, batch and layout from the printed arguments.",
    ),
    "megatron-golden-values": Guide(
        "Megatron-LM",
        "Take golden_values_*.json of a functional test.",
        "Iteration times, loss and memory by step.",
    ),
    "torchtitan-log": Guide(
        "torchtitan",
        "./run_train.sh 2>&1 | tee train.log",
        "Tokens a second of a device, FLOP rate, MFU, memory and loss by step.",
    ),
    "maxtext-log": Guide(
        "MaxText",
        "python -m MaxText.train config.yml 2>&1 | tee train.log",
        "Step times, FLOP rate and tokens a second of a device, loss.",
    ),
    "nccl-tests": Guide(
        "nccl-tests, rccl-tests",
        "all_reduce_perf -b 8 -e 8G -f 2 -g 8 | tee nccl.txt",
        "Time, algorithm and bus bandwidth over message sizes, in and out of place, as a series.",
    ),
    "pytest-benchmark": Guide(
        "pytest-benchmark",
        "pytest --benchmark-json=bench.json",
        "Every benchmark with its statistics and, where saved, its rounds.",
    ),
    "google-benchmark": Guide(
        "google-benchmark",
        "./bench --benchmark_out=bench.json --benchmark_out_format=json",
        "Real time of every benchmark, repetitions and aggregates, bytes and items a second.",
    ),
    "kernelbench-timing": Guide(
        "KernelBench", "Take the timing JSON of an evaluation.", "Run times of every problem with their spread."
    ),
    "liger-kernel-csv": Guide(
        "Liger-Kernel",
        "python benchmark/scripts/benchmark_rms_norm.py  (all_benchmark_data.csv)",
        "Speed and memory by provider over sizes, as a series.",
    ),
    "flash-attention-bench": Guide(
        "FlashAttention",
        "python benchmarks/benchmark_flash_attention.py | tee flash.txt",
        "FLOP rates of forward and backward by head dimension, length and batch.",
    ),
    "deepep-test": Guide(
        "DeepEP",
        "python tests/test_intranode.py | tee deepep.txt",
        "Bandwidth and time of dispatch and combine, tuned, by precision.",
    ),
    "triton-perf-report": Guide(
        "Triton",
        "Call mark.run(save_path='out') on a perf_report; upload the CSV that it writes.",
        "Every provider's curve over the sizes. The file states no unit: say it on the run's page.",
    ),
    "torch-profiler-trace": Guide(
        "PyTorch profiler",
        "prof.export_chrome_trace('trace.json.gz')  with activities CPU and CUDA, record_shapes=True",
        "Kernels by name and family, idle time, launch gaps, exposed communication, steps; also of cut-off traces.",
    ),
    "ncu-csv": Guide(
        "Nsight Compute",
        "ncu --set full -o report ./program && ncu --import report.ncu-rep --csv --page raw > kernels.csv",
        "Kernels with time, FLOP, DRAM and L2 bytes from the counters, and the peaks of DRAM and L2 that these tell.",
    ),
    "nsys-stats": Guide(
        "Nsight Systems",
        "nsys profile -o report ./program && nsys stats --report cuda_gpu_kern_sum --format csv report.nsys-rep",
        "Kernels by name with count and time, copies and API calls.",
    ),
    "rocprof": Guide(
        "rocprof",
        "rocprofv3 --kernel-trace --stats --output-format csv -- ./program",
        "Kernels by name with count and time.",
    ),
    "rocprof-compute-csv": Guide(
        "ROCm Compute Profiler",
        "rocprof-compute profile -n NAME -- ./program  (pmc_perf.csv)",
        "Kernels with time, FLOP and bytes from the counters.",
    ),
    table.FORMAT: Guide(
        "Anything that writes a table",
        "Columns of your own: CSV with comma, semicolon, tab or bar, a JSON list of flat objects, or JSON lines.",
        "Every row as a run, by what you say once of its columns; units in headings and decimal commas are understood.",
    ),
    archive.FORMAT: Guide(
        "Any archiver",
        "zip night.zip results/*.json",
        "Every file inside as if it came alone; those that cannot be read are named. Any file may be gzipped, too.",
    ),
}

OWN_WORDS: Mapping[str, str] = {
    "perf-analyzer": "Upload the export of GenAI-Perf or AIPerf, which is computed from it.",
    "rocprofv3": "Write CSV instead: rocprofv3 --kernel-trace --stats --output-format csv.",
}
"""Advice for refused formats whose entry has none."""


@dataclass(frozen=True, slots=True)
class FormatEntry:
    """A format as the page and the API describe it."""

    id: str
    title: str
    tool: str
    make: str
    reads: str
    tried_on_real_file: bool
    streams: bool


def formats() -> tuple[FormatEntry, ...]:
    """Every format that is read, in the order of their tools' names, ours first and tables and archives last."""
    entries = [_entry(i.id, i.title, i.tried_on_real_file, bool(getattr(i, "streams", False))) for i in IMPORTERS]
    entries.sort(key=lambda entry: (entry.id != "bytebound", entry.tool.lower(), entry.id))
    return (
        *entries,
        _entry(table.FORMAT, table.TITLE, True, False),
        _entry(archive.FORMAT, "Zip archive of any of these", True, True),
    )


def refused_formats() -> tuple[tuple[str, str, str], ...]:
    """(Id, what it is, what to do instead) of formats that are recognised and not read."""
    return tuple((k.id, k.title, k.note or OWN_WORDS.get(k.id, "")) for k in KNOWN_UNSUPPORTED)


def is_tried(format: str) -> bool:
    """Whether a format's reader has met a real file; an unknown format counts as tried."""
    return next((importer.tried_on_real_file for importer in IMPORTERS if importer.id == format), True)


def _entry(id_: str, title: str, tried: bool, streams: bool) -> FormatEntry:
    guide = GUIDES.get(id_, Guide(title, "", ""))
    return FormatEntry(id_, title, guide.tool, guide.make, guide.reads, tried, streams)
