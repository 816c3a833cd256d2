"""adapter_config.json: what peft writes for plain LoRA is accepted, every key that changes its meaning is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.records.adapter import read_lora_config
from bench.records.checksummed import ResultError

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 16, "lora_alpha": 32}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(PLAIN | changes))
    return path


@pytest.mark.parametrize("value", [False, None, "gaussian", "orthogonal", "eva"])
def test_an_initialization_that_leaves_the_base_as_it_is_is_plain_lora(value: Any, tmp_path: Path) -> None:
    assert read_lora_config(write(tmp_path, init_lora_weights=value, later_key=None, other={}))["r"] == 16


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("init_lora_weights", value) for value in ("pissa", "x")),
        ("alora_invocation_tokens", [3, 4]),
        *((key, True) for key in ("use_dora", "use_rslora", "fan_in_fan_out", "key_of_a_later_peft")),
        *((key, {"q_proj": 8}) for key in ("rank_pattern", "alpha_pattern")),
        *(("layers_to_transform", value) for value in ([0], 0)),
        ("bias", "all"),
        ("peft_type", "IA3"),
        ("peft_type", None),
        ("task_type", "SEQ_CLS"),
    ],
)
def test_a_key_that_changes_the_meaning_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=f"adapter_config.json: {key} is .*, not plain LoRA; convert"):
        read_lora_config(write(tmp_path, **{key: value}))
