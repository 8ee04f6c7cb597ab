"""Architectures written out by hand, so that tests of the calculators do not depend on the catalogue."""

from __future__ import annotations

from app.domain.cost import CostTable
from app.domain.hardware import HardwareProfile, Link
from app.domain.model import Attention, DenseMlp, LatentAttention, LayerGroup, ModelSpec, MoeMlp

LLAMA3_8B = ModelSpec(
    "llama-3-8b",
    "Llama 3 8B",
    "decoder",
    hidden_size=4096,
    vocab_size=128256,
    layers=(LayerGroup(32, Attention(32, 8, 128, 128), DenseMlp(14336)),),
    activation="silu",
)
LLAMA3_70B = ModelSpec(
    "llama-3-70b",
    "Llama 3 70B",
    "decoder",
    hidden_size=8192,
    vocab_size=128256,
    layers=(LayerGroup(80, Attention(64, 8, 128, 128), DenseMlp(28672)),),
    activation="silu",
)
MIXTRAL_8X7B = ModelSpec(
    "mixtral-8x7b",
    "Mixtral 8x7B",
    "moe",
    hidden_size=4096,
    vocab_size=32000,
    layers=(LayerGroup(32, Attention(32, 8, 128, 128), MoeMlp(8, 2, 14336)),),
    activation="silu",
)
DEEPSEEK_MLA = LatentAttention(
    128, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536
)
DEEPSEEK_V3 = ModelSpec(
    "deepseek-v3",
    "DeepSeek-V3",
    "moe",
    hidden_size=7168,
    vocab_size=129280,
    layers=(
        LayerGroup(3, DEEPSEEK_MLA, DenseMlp(18432)),
        LayerGroup(
            58,
            DEEPSEEK_MLA,
            MoeMlp(256, 8, 2048, shared_experts=1, shared_intermediate=2048, router_bias=True),
            first_index=3,
        ),
    ),
    activation="silu",
)
GPT3_175B = ModelSpec(
    "gpt3-175b",
    "GPT-3 175B",
    "decoder",
    hidden_size=12288,
    vocab_size=50257,
    layers=(LayerGroup(96, Attention(96, 96, 128, 128), DenseMlp(4 * 12288, gated=False)),),
    norm="layernorm",
    norm_has_bias=True,
    tied_embeddings=True,
    learned_positions=2048,
    activation="gelu",
)
WINDOWED = ModelSpec(
    "windowed",
    "five sliding layers to one full layer",
    "decoder",
    hidden_size=2048,
    vocab_size=32768,
    layers=(
        LayerGroup(10, Attention(16, 8, 128, 128, kind="sliding", window=1024, qk_norm="head"), DenseMlp(8192)),
        LayerGroup(2, Attention(16, 8, 128, 128), DenseMlp(8192)),
    ),
    tied_embeddings=True,
    activation="gelu",
)
ALL = (LLAMA3_8B, LLAMA3_70B, MIXTRAL_8X7B, DEEPSEEK_V3, GPT3_175B, WINDOWED)

H100 = HardwareProfile(
    "h100",
    "H100 SXM",
    "NVIDIA",
    memory_capacity=80e9,
    memory_bandwidth=3.35e12,
    peak={"bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1979e12, "fp32": 67e12},
    peak_exponentials=3.86e12,
    l2_capacity=50 * 2.0**20,
    scale_up=Link("NVLink 4", 450e9, domain_size=8),
    scale_out=Link("NDR", 50e9),
    launch_overhead=2e-6,
)


def row_of(table: CostTable, name: str, column: str = "flop") -> float:
    """What one execution of the only row of this name costs."""
    (index,) = [i for i, op in enumerate(table.ops) if op.name == name]
    return float(table[column][index])


def step_total(table: CostTable, column: str, *, direction: str | None = None, kind: str | None = None) -> float:
    """Sum over the step of a column, of rows of one direction and kind."""
    return sum(
        float(table[column][i] * table["count"][i])
        for i, op in enumerate(table.ops)
        if (direction is None or op.direction == direction) and (kind is None or op.kind == kind)
    )
