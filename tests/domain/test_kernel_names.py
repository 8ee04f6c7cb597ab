"""Names of device functions as profilers print them, and the family that a person would put each into."""

from __future__ import annotations

import time

import pytest

from app.domain.kernels import FAMILY_IDS, RULES, family_named, family_of, kind_of, short_name

NAMES: dict[str, tuple[str, ...]] = {
    "gemm": (
        "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN",
        "ampere_sgemm_32x32_sliced1x4_tn",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, false>(int)",
        "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn_align8>(Params)",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>>>(Params)",
        "cutlass3x_sm100_tensorop_s64x256x32gemm_f8_f8_f32_f16_f16_64x256x128_1x1x1_0_tnn_align4_1sm_bias_f16_relu",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4, 4, false>(X)",
        "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN_LDSB0_AFC1",
        "void marlin::Marlin<256, 1, 8, 8, 4, 8>(int4 const*, int4 const*, int4*, int4*, int4 const*, int, int, int,",
        "void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u, 1u, 128u, 128u, 128u>(float*, int*)",
        "triton_tem_fused_mm_12",
        "_ZN2ck16kernel_gemm_xdl_cshuffle_v3INS_45GridwiseGemm_xdl_cshuffle",
        "void mul_mat_q<(ggml_type)12, 64, 8, false>(char const*, int const*, float*)",
        "_w8a8_block_fp8_matmul",
    ),
    "grouped-gemm": (
        "fused_moe_kernel",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GroupProblemShape<X>>>(P)",
        "void moe_wna16_marlin_gemm_kernel<int>(int4 const*)",
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu",
        "void cutlass::Kernel2<cutlass::gemm::kernel::GemmGrouped<X>>(Params)",
    ),
    "attention": (
        "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_pa",
        "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0",
        "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloop>>",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Par",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u, 4u, 8u, 16u, 1u, 8u>",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<KernelTraits>(Params)",
        "void vllm::paged_attention_v2_kernel<unsigned short, unsigned short, 128, 16, 128>(float*, float*)",
        "kernel_unified_attention_2d",
        "_attn_fwd",
        "triton_tem_fused_flex_attention_3",
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<X>>(Kargs)",
        "void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576, 64, 64, 8>>(Flash_fwd_mla_params)",
        "void flash_attn_ext_f16<128, 128, 16, 4, 64, 1, false, false>(char const*)",
        "_fwd_grouped_kernel_stage1",
    ),
    "convolution": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4",
        "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "void fft2d_r2c_32x32<float, false, 5u, true>(float2*, float const*, int)",
        "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<5, float, int>(X)",
        "igemm_fwd_gtcx2_nhwc_fp16_bx0_ex1",
    ),
    "scan": (
        "void selective_scan_fwd_kernel<Selective_Scan_fwd_kernel_traits<32, 4, 1, true, true, true, true, float>>(P)",
        "_chunk_scan_fwd_kernel",
        "void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128, 4, true, float>>(ConvParamsBase)",
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    ),
    "norm": (
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, true>(int, float)",
        "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<c10::BFloat16, float, 32u>(long)",
        "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16*)",
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<X>(P)",
        "void cuApplyLayerNorm<float, float, float>(float*)",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0",
        "_layer_norm_fwd_1pass_kernel",
        "void rms_norm_f32<1024, true>(float const*, float*, int)",
    ),
    "elementwise": (
        "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<ch",
        "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::(anonymous "
        "namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda()#6}>>(int)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &(vllm::silu_kernel), true>(c10::BFloat16*, c10::BFloat16 cons",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "triton_poi_fused_mul_silu_4",
        "triton_per_fused_add_sum_2",
        "void at::native::(anonymous namespace)::adaptive_average_pool<float>(float const*, float*, int)",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int, float const*)",
        "vectorAdd(const float *, const float *, float *, int)",
    ),
    "copy": (
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::OpaqueType<2u>, unsigned",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::"
        "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>>(int)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>(i",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(X)",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16>(X)",
        "Memcpy HtoD (Pageable -> Device)",
        "[CUDA memcpy DtoH]",
        "[CUDA memset]",
        "__amd_rocclr_copyBuffer",
        "__amd_rocclr_fillBufferAligned",
        "triton_poi_fused__to_copy_t_3",
        "triton_poi_fused_clone_transpose_7",
        "per_token_group_quant_8bit_kernel",
        "vecCopy(double*, double*, double*, int, int) (.kd)",
        "void transformer_engine::detail::cast_transpose_general_kernel<true>(X)",
    ),
    "collective": (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<X>(P)",
        "void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(X)",
        "rcclGenericKernel_1",
    ),
    "moe": (
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*)",
        "void vllm::moe::topkGatingSoftmax<4, 128, 4, 16, 32>(float const*)",
        "void vllm::moe::moe_align_block_size_kernel<int>(int const*)",
        "void tensorrt_llm::kernels::expandInputRowsKernel<__nv_bfloat16>(X)",
        "_permute_kernel",
        "_unpermute_bwd_with_merging_probs_kernel",
        "void moe_sum_kernel<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, int)",
    ),
    "optimizer": (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::TensorListMetadata<3>, "
        "at::native::PointwiseOpScalarFunctor<c10::BFloat16, 3, 3, 0>>(X)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float>(int, in",
        "void multi_tensor_apply_kernel<TensorListMetadata<1>, L2NormFunctor<float>, float*, float*, bool, int>(X)",
        "void at::native::(anonymous namespace)::fused_adam_cuda_kernel<float>(X)",
        "triton_for_fused_0",
    ),
    "softmax": (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, LogSoftMaxForwardEpilog",
        "void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>(float*)",
        "liger_cross_entropy_kernel",
        "triton_red_fused__log_softmax_nll_loss_forward_5",
        "void soft_max_f32<true, 0, 0, float>(float const*, float const*, float*)",
    ),
    "embedding": (
        "void at::native::(anonymous namespace)::indexSelectSmallIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>(X)",
        "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<c10::BFloat16, float, long>(X)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)",
        "triton_poi_fused_embedding_0",
        "void k_get_rows_float<float, float>(float const*)",
    ),
    "sampling": (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::ArgMaxOps<float>, lo",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u, int>(float*)",
        "void at::native::mbtopk::radixFindKthValues<c10::BFloat16, unsigned short, unsigned int, 4, 1>(X)",
        "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<float>>(int)",
        "triton_red_fused_argmax_1",
    ),
    "other": ("elevate", "my_special_function(int)", ""),
}


@pytest.mark.parametrize("family", NAMES)
def test_names_of_each_family(family: str) -> None:
    assert {name: family_of(name) for name in NAMES[family]} == dict.fromkeys(NAMES[family], family)


def test_what_moves_data_between_devices() -> None:
    assert kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(X)").communicates
    assert kind_of("void deep_ep::internode_ll::combine<true>(void*)").communicates
    assert not kind_of("void vllm::moe::topkGatingSoftmax<4>(float const*)").communicates
    assert {rule.kind.family for rule in RULES} | {"other"} == set(FAMILY_IDS)


def test_hostile_names_take_no_time() -> None:
    started = time.process_time()
    for name in ("triton_poi_fused_" + "t_" * 4000, "triton_poi_fused_" + "copy" * 3000, "(<" * 20_000, "a" * 100_000):
        assert family_of(name) in FAMILY_IDS
        assert len(short_name(name)) <= 60
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)",
            "vectorized_layer_norm_kernel",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, "
            "c10::BFloat16, at::native::binary_internal::MulFunctor<float> > >(int)",
            "vectorized_elementwise_kernel: MulFunctor",
        ),
        ("void at::<unnamed>::cunn_SoftMaxForwardReg<c10::BFloat16, float>(T1)", "cunn_SoftMaxForwardReg"),
        (
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        ),
        ("vecCopy(double*, double*, double*, int, int) (.kd)", "vecCopy"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"),
        ("", ""),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


def test_own_words_for_a_family() -> None:
    told = ("GEMM", " copy/layout ", "Copy, cast and layout", "norm", "our special work")
    assert [family_named(text) for text in told] == ["gemm", "copy", "copy", "norm", "our special work"]
