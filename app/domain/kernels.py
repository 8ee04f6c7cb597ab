"""Kernel names: what family a device function belongs to, and a short form of it that a person can read.

A name is all that most profiles give. The rules are an ordered list, more specific first; the first that matches wins.
They were written over names that libraries really produce (cuBLAS, cuDNN, CUTLASS, FlashAttention, FlashInfer, Triton
and TorchInductor, NCCL and RCCL, DeepEP, Apex, Composable Kernel, llama.cpp). What no rule knows is "other", never a
guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of work by id and title."""

    id: str
    title: str


FAMILIES: tuple[Family, ...] = (
    Family("gemm", "GEMM"),
    Family("grouped-gemm", "Grouped GEMM"),
    Family("attention", "Attention"),
    Family("convolution", "Convolution"),
    Family("scan", "Scan and long convolution"),
    Family("norm", "Norm"),
    Family("elementwise", "Elementwise and reduction"),
    Family("copy", "Copy, cast and layout"),
    Family("collective", "Collective"),
    Family("moe", "MoE route, permute, dispatch"),
    Family("optimizer", "Optimizer"),
    Family("softmax", "Softmax, logits and loss"),
    Family("embedding", "Embedding and gather"),
    Family("sampling", "Sampling, sort and top-k"),
    Family("other", "Other"),
)
"""Every family in the order that tables and legends use."""

FAMILY_IDS: tuple[str, ...] = tuple(family.id for family in FAMILIES)
FAMILY_TITLES: dict[str, str] = {family.id: family.title for family in FAMILIES}


@dataclass(frozen=True, slots=True)
class KernelKind:
    """What a name says: the family, and whether the kernel moves data between devices."""

    family: str
    communicates: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """Names in which `pattern` is found are of `kind`. Case does not count: pattern and name are in small letters."""

    kind: KernelKind
    pattern: re.Pattern[str]


def _rule(family: str, pattern: str, *, communicates: bool = False) -> Rule:
    assert not re.search(r"\\[A-Z]", pattern), "a class such as \\W has another meaning in small letters"
    # small letters on both sides are four times as fast as IGNORECASE, which counts in traces of 40,000 names
    return Rule(KernelKind(family, communicates), re.compile(pattern.lower()))


_MOVES = (
    r"_to_copy|_unsafe_view|clone|copy_?|cat|transpose|permute|view|unsqueeze|expand|slice|stack|split_with_sizes|split|reshape"
    r"|constant_pad_nd|select|zeros_like|zeros|full_like|full|fill|squeeze|as_strided|t"
)
"""Operations that only move, cast or fill, as TorchInductor writes them into the names of fused kernels."""

RULES: tuple[Rule, ...] = (
    # --- between devices
    _rule(
        "moe",
        r"deep_?ep\b|deep_ep::|(?:intranode|internode|internode_ll|legacy)::(?:\w*dispatch|\w*combine)",
        communicates=True,
    ),
    _rule("moe", r"hybrid_ep|moe_?a2a|moe_?all_?to_?all|\bpplx\w*a2a", communicates=True),
    _rule(
        "collective",
        r"nccl(?:Dev)?Kernel|ncclSymk|rccl|msccl|nvshmem|rocshmem|cross_device_reduce|quick_?reduce"
        r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|multimem_|(?:one|two)_?shot_\w*reduce|lamport|userbuffers",
        communicates=True,
    ),
    # --- TorchInductor: the name lists the fused operations, the heaviest decides
    _rule("attention", r"^triton_tem_\w*(?:attention|sdpa)"),
    _rule("gemm", r"^triton_tem_|^triton_mm\b"),
    _rule("sampling", r"^triton_\w*(?:argmax|multinomial|topk|_sort)"),
    _rule("softmax", r"^triton_\w*(?:softmax|nll_loss|cross_entropy|logsumexp|mse_loss)"),
    _rule("norm", r"^triton_\w*(?:layer_norm|group_norm|batch_norm|rms_norm|rsqrt|var_mean|l2_norm)"),
    _rule("embedding", r"^triton_\w*(?:embedding|index_select|_gather)"),
    _rule("optimizer", r"^triton_for_fused|^triton_\w*(?:addcdiv|addcmul|adamw?)"),
    _rule("copy", rf"^triton_[a-z]{{2,5}}_fused_(?:(?:{_MOVES})_){{1,12}}\d*$"),
    _rule("elementwise", r"^triton_(?:poi|red|per|unk|split_scan|mix)\w*_fused"),
    # --- mixtures of experts
    _rule(
        "grouped-gemm",
        r"fused_moe_kernel|moe_\w*gemm|moe_?gemm|marlin_moe|moe_wna16|group(?:ed)?_?gemm|gemm_?grouped|grouped_mm|GroupProblemShape"
        r"|_matmul_ogs|ragged_(?:dot|mm)|_p_matmul_ogs|gemmGroup|moe::dev::gemm|blockscale_?moe|bmm_\w*moe|scatter2scatter",
    ),
    _rule(
        "moe",
        r"moe|expert|topk_?gating|topk_softmax|grouped_topk|expandInputRows|finalizeMoe|(?:un)?permute_(?:kernel|and|with|tokens|from|mask|bwd)"
        r"|_permute_kernel|_unpermute_kernel|sort_chunks_by|row_id_map|token_permut|make_row_id|routing(?:Main|Kernel|Indices)"
        r"|(?:get|notify)_dispatch|ep_scatter|ep_gather",
    ),
    _rule("copy", r"(?:reshape|concat)_and_cache|append_paged|store_kv"),
    _rule("elementwise", r"rotary|(?:\b|_)rope|rope_"),
    # --- attention before GEMM and softmax, whose words its names contain
    _rule(
        "scan",
        r"selective_scan|mamba|\bssd_|chunk_scan|chunk_state|state_passing|causal_conv1d|delta_rule|\bwkv|rwkv|fftconv|fwd_h_kernel",
    ),
    _rule(
        "attention",
        r"flash|fmha|sdpa|attention|attn|paged_?kv|pagedkv|Batch(?:Decode|Prefill)|Single(?:Decode|Prefill)|MergeState|mla_|_mla\b|\bmla::"
        r"|decode_grouped_att|_fwd_grouped_kernel|compute_dot_do_o|convert_dq_to|gemm_softmax_gemm|xqa|_bwd_preprocess|splitkv|_dot_do_o",
    ),
    # --- the optimizer's list kernels before the elementwise work inside them
    _rule("optimizer", r"multi_tensor|adam|\blamb(?!da)|lars_|\blion|fused_sgd|\bsgd_|adagrad|newton_?schulz|muon"),
    # --- products
    _rule(
        "convolution",
        r"implicit_(?:con|gemm)|xmma_(?:fprop|dgrad|wgrad)|(?:fprop|dgrad|wgrad)_|convolve|conv(?:olution)?_?[123]?d|winograd|\bfft[12]d"
        r"|scudnn|hcudnn|cask_cudnn|computeOffsets|miopen|igemm_(?:fwd|bwd|wrw)|im2col|vol2col|depthwise|naive_conv|grouped_conv",
    ),
    _rule(
        "softmax",
        r"cunn_SoftMax|soft_?max|nll_loss|cross_?entropy|logsumexp|log_prob|mse_(?:kernel|backward|loss)|kl_div|binary_cross",
    ),
    _rule(
        "norm",
        r"(?:layer|rms|group|batch|instance|rows?|l2)_?norm|GammaBeta|RowwiseMoments|ComputeFusedParams|ComputeInternalGradients|ln_(?:fwd|bwd)"
        r"|\bbn_(?:fw|bw)|cuApply|cuCompute(?:Grad|Part)|norm_(?:fwd|bwd|kernel)|welford",
    ),
    _rule(
        "copy",
        r"(?:de)?quant(?:ize|_|\b)|nchwToNhwc|nhwcToNchw|convert_(?:fp|bf|to|weight)|scaled_fp8|per_token_group|cast_?transpose",
    ),
    _rule(
        "gemm",
        r"gemm|nvjet|matmul|\bmul_mat|gemv|Cijk_|splitK_?reduce|cublas|epilogue::impl|cutlass|marlin|machete|bitblas|wmma|\bbmm|_mm_|scaled_mm"
        r"|dot_kernel|gemvx|kernel_gemm|hipblas|wvSplitK|LLGemm|linear_kernel|qmm|cublasLt",
    ),
    # --- the rest of a step
    _rule(
        "embedding",
        r"embedding|indexSelect|vectorized_gather|get_rows|index_put|indexing_backward|index_elementwise|scatter_gather|gather_kernel",
    ),
    _rule(
        "sampling",
        r"ArgM(?:ax|in)|argmax|multinomial|top_?k|top_?p(?:_|Sampl)|bitonicSort|RadixSort|radix_?sort|DeviceMergeSort|Sampling|penalt|exponential_|Gumbel|KthValue",
    ),
    _rule(
        "copy",
        r"copy|memcpy|memset|\bcpy_|CatArray|FillFunctor|fillBuffer|transpose|concat|_pad_|padding|pad_kernel|permute"
        r"|triu|tril|\broll_|cast_",
    ),
    _rule(
        "elementwise",
        r"elementwise|silu|gelu|relu|swiglu|geglu|sigmoid|tanh|act_and_mul|activation|dropout|reduce_kernel|CUDAFunctor"
        r"|BinaryFunctor|UnaryFunctor|\bvectoradd|pool|modulat|bias_add|clamp|lerp|philox|distribution_|DeviceReduce|reduce_1Block|\badd_|\bmul_"
        r"|unary_op|bin_bcast|k_bin|fused_add|residual",
    ),
)

_UNNAMED = KernelKind("other")


@lru_cache(maxsize=20_000)
def kind_of(name: str) -> KernelKind:
    """The kind of a kernel by its name, mangled or not, of which the first 600 characters count."""
    # FlashInfer is a library of every family, with the word of one in its name
    head = name[:600].replace("flashinfer", "").lower()
    return next((rule.kind for rule in RULES if rule.pattern.search(head)), _UNNAMED)


def family_of(name: str) -> str:
    """The id of the family that a kernel's name belongs to."""
    return kind_of(name).family


_WORDS: dict[str, str] = {
    **{title.casefold(): id for id, title in FAMILY_TITLES.items()},
    "copy/layout": "copy",
    "layout": "copy",
    "communication": "collective",
    "moe permute": "moe",
    "layer norm": "norm",
    "reduction": "elementwise",
}


def family_named(text: str) -> str:
    """The id of the family that somebody's own words name ("GEMM", "copy/layout"); words of no family stay as told."""
    told = text.strip().casefold()
    return told if told in FAMILY_TITLES else _WORDS.get(told, text)


_FUNCTOR = re.compile(
    r"[A-Za-z_]\w*?(?:Functor\w*|_kernel_cuda|_kernel_impl|_functor|Ops|OpMath)\b|[A-Za-z_]\w*?_kernel\b"
)
_GENERIC = frozenset(
    {
        "gpu_kernel_impl",
        "gpu_kernel_impl_nocast",
        "elementwise_kernel",
        "vectorized_elementwise_kernel",
        "unrolled_elementwise_kernel",
        "reduce_kernel",
        "multi_tensor_apply_kernel",
        "BinaryFunctor",
        "AUnaryFunctor",
        "BUnaryFunctor",
        "func_wrapper_t",
    }
)
_DIGEST = re.compile(r"(?:anonymous namespace|unnamed)")


@lru_cache(maxsize=20_000)
def short_name(name: str, most: int = 60) -> str:
    """The function's own name without return type, namespaces, template arguments and parameters.

    The generic kernels of a framework get the operation that they were made for: "elementwise_kernel: MulFunctor".
    """
    bare = _DIGEST.sub("", name[:1200]).replace("(::", "(").replace("()::", "").replace("<>::", "")
    bare = bare.removeprefix("void ").strip()
    cut = min((place for place in (bare.find("<"), bare.find("(")) if place > 0), default=len(bare))
    own = bare[:cut].rsplit("::", 1)[-1].strip() or bare[:most]
    if own in _GENERIC:
        inner = (found for found in _FUNCTOR.findall(bare[cut:]) if found not in _GENERIC)
        detail = next(inner, "")
        own = f"{own}: {detail}" if detail else own
    return own if len(own) <= most else own[: most - 1] + "…"
