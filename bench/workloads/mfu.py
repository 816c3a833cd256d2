"""MFU: the share of the device's matrix-product rate that the training reached.

The product is measured on the same device right after the last step, at the training's clocks and temperature.
"""

from pathlib import Path

from bench.data.model_folder import read_config
from bench.harness.record import Record
from bench.harness.termination import is_out_of_memory
from bench.machine import gpu_specs
from bench.predict import flops
from bench.qlora.session import TorchSession
from bench.records.bootstrap import Interval, summarize
from bench.workloads import hardware

FORMULA = "4 (blocks + head) + 6 adapters + 3 attention: bench/predict/flops.py; recomputation not counted"
CPU_SIZE, CPU_SEC = 512, 0.1


def add_ceilings(record: Record, session: TorchSession) -> None:
    """Add matmul_tflops and mfu_percent for the record's steps, without values if no product can be measured."""
    dtype = "bf16" if session.placement.compute_dtype == session.modules.torch.bfloat16 else "fp32"
    size = hardware.QUICK_SIZE if session.placement.is_cuda else CPU_SIZE
    try:
        ceiling = _ceiling(session, dtype)
    except hardware.Unsupported as error:
        return _add_missing(record, dtype, size, str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return _add_missing(record, dtype, size, "not enough memory left next to the training")
    chip = gpu_specs.lookup(record.fingerprint["gpu_name"])
    share = gpu_specs.share_percent(ceiling.median, None if chip is None else chip.matmul_tflops(dtype))
    record.add("matmul_tflops", ceiling, share_percent=share, dtype=dtype, size=size)
    trial, steps = record.trial, record.steps
    cost = flops.trial_flops(read_config(Path(trial.model)), trial)
    rates = [tokens / seconds for tokens, seconds in zip(steps.tokens, steps.step_time_sec, strict=True)]
    mfu = summarize([flops.mfu_percent(cost.model, rate, ceiling.median) for rate in rates])
    record.add(
        "mfu_percent",
        mfu,
        flop_per_token=cost.model,
        recomputed_flop_per_token=cost.recompute // trial.checkpoint_every,
        matmul_dtype=dtype,
        formula=FORMULA,
    )
    return None


def _ceiling(session: TorchSession, dtype: str) -> Interval:
    if session.placement.is_cuda:
        session.modules.torch.cuda.empty_cache()  # the training's cached blocks may fill the memory
        return hardware.bf16_matmul_tflops(session)
    return hardware.matmul_tflops(session, dtype, CPU_SIZE, budget_sec=CPU_SEC, operand_bytes=0)


def _add_missing(record: Record, dtype: str, size: int, note: str) -> None:
    record.add("matmul_tflops", None, note=note, dtype=dtype, size=size)
    record.add("mfu_percent", None, note="no measured matrix product to compare with", formula=FORMULA)
