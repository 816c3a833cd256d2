"""The fastest configuration that fits a GPU: figures by GPU, and properties that hold for any memory."""

import pytest

from bench.predict import memory
from bench.predict.fit import OPEN_FIELDS, fastest_fit
from bench.records.validation import ALL_LINEAR
from tests.model_shapes import MISTRAL_7B as CONFIG

GIB = 1 << 30
WIDE = {"lora_targets": ALL_LINEAR, "lora_rank": 64}


def fit(make_trial, gib, open_fields=OPEN_FIELDS, **changes):
    trial = make_trial(**({"recipe": "fast", "max_seq_len": 512, "layout": "varlen"} | changes))
    return fastest_fit(CONFIG, trial, open_fields, memory.largest_peak(int(gib * GIB)))


@pytest.mark.parametrize(
    ("gib", "changes", "row", "recomputed_every", "offloads", "held", "optimizer"),
    [
        pytest.param(139.7, {}, 8, 0, False, 32, "adamw_torch", id="H200"),
        pytest.param(39.5, {"matmul": "int8"}, 8, 0, False, 32, "adamw_torch", id="A100-int8"),
        pytest.param(22.49, {}, 8, 0, False, 10, "adamw_torch", id="A10"),
        pytest.param(22.49, {"matmul": "int8"}, 8, 0, False, 19, "adamw_torch", id="A10-int8"),
        pytest.param(22.49, {"max_seq_len": 4096}, 1, 0, False, 10, "adamw_torch", id="A10-long"),
        pytest.param(22.49, {"recipe": "stock"}, 4, 0, False, 0, "adamw_torch", id="A10-stock"),
        pytest.param(15.7, {}, 8, 4, False, 1, "adamw_torch", id="16-GiB"),
        pytest.param(7.6, {}, 8, 1, True, 4, "adamw_torch", id="8-GiB"),
        pytest.param(7.6, WIDE, 8, 1, True, 0, "paged_adamw_8bit", id="8-GiB-all-linear"),
    ],
)
def test_the_choice_by_memory(make_trial, gib, changes, row, recomputed_every, offloads, held, optimizer):
    chosen = fit(make_trial, gib, **changes)
    recomputed = chosen.checkpoint_every if chosen.gradient_checkpointing else 0
    assert (chosen.micro_batch_size, recomputed, chosen.offload_checkpoints) == (row, recomputed_every, offloads)
    assert (chosen.held_layers, chosen.optimizer) == (held, optimizer)


@pytest.mark.parametrize("matmul", ["bf16", "int8"])
def test_what_is_chosen_fits_and_more_memory_never_takes_less(make_trial, matmul):
    peaks = []
    for gib in (6, 8, 10, 12, 16, 20, 22, 24, 32, 40, 80):
        chosen = fit(make_trial, gib, matmul=matmul)
        peaks.append(memory.peak_bytes(CONFIG, chosen))
        assert peaks[-1] <= memory.largest_peak(gib * GIB)
    assert peaks == sorted(peaks)


def test_only_open_fields_change(make_trial):
    closed = {"micro_batch_size": 2, "gradient_checkpointing": True, "held_layers": 3, "optimizer": "paged_adamw_8bit"}
    for name, value in closed.items():
        assert getattr(fit(make_trial, 24, set(OPEN_FIELDS) - {name}, **{name: value}), name) == value
    assert fit(make_trial, 24, (), **closed) == make_trial(recipe="fast", max_seq_len=512, layout="varlen", **closed)


def test_a_choice_for_another_gpu_does_not_matter(make_trial):
    large = fit(make_trial, 139.7)
    assert fastest_fit(CONFIG, large, OPEN_FIELDS, memory.largest_peak(24 * GIB)) == fit(make_trial, 24)


def test_nothing_fits(make_trial):
    assert fit(make_trial, 4) is None
