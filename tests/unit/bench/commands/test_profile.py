"""Kernels by kind: names that real steps launch, and shares that add up."""

import pytest

from bench.commands.cli import main
from bench.commands.profile import kind_of, sum_by_kind


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT", "matrix products"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "matrix products"),
        ("_nf4_dequantize", "NF4 dequantization"),
        ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>", "NF4 dequantization"),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, cutlass::bfloat16_t>",
            "attention",
        ),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128", "attention"),
        ("void cudnn::fusion::convert_dq_to_16bits<true>", "attention"),
        ("_lora_weight_gradient", "LoRA, the small products"),
        ("nf4_products", "products over NF4"),
        ("attend_row", "attention"),
        ("_rms_norm_backward", "norm, rope, activation"),
        ("_swiglu_forward", "norm, rope, activation"),
        ("_cross_entropy", "cross entropy"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "optimizer"),
        ("void at::native::(anonymous namespace)::fused_dropout_kernel_vec", "dropout"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda>",
            "elementwise and casts",
        ),
        ("a custom kernel", "other"),
    ],
)
def test_a_kernel_is_sorted_by_its_name(kernel, kind):
    assert kind_of(kernel) == kind


def test_shares_add_up_to_the_step_and_what_is_missing_is_idle():
    shares = sum_by_kind([("nvjet_a", 5.0, 2), ("nvjet_b", 1.0, 1), ("_nf4_dequantize", 2.0, 4)], 10.0)
    assert [(share.kind, share.milliseconds, share.launches) for share in shares] == [
        ("matrix products", 6.0, 3),
        ("NF4 dequantization", 2.0, 4),
        ("idle", 2.0, 0),
    ]
    assert sum(share.percent for share in shares) == pytest.approx(100)


def test_kernels_that_overlap_leave_no_idle_time():
    shares = sum_by_kind([("nvjet", 8.0, 1), ("Memcpy HtoD", 4.0, 1)], 10.0)
    assert [(share.kind, round(share.percent, 1)) for share in shares] == [("matrix products", 66.7), ("copies", 33.3)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial-name", "load-nf4", "--suite", "loading"], "; choose it with --trial-name"),
        ([], "--trial-name"),
        (["--trial-name", "fast", "--suite", "recipes", "--adapters"], "--adapters: "),
        (["--trial-name", "fast", "--suite", "recipes"], "profile gpu "),
    ],
)
def test_a_trial_that_cannot_be_profiled_is_rejected(capsys, monkeypatch, arguments, message):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["profile", *arguments, "--model", "M", "--data", "D"]) == 2
    assert message in capsys.readouterr().err
