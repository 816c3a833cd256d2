"""Merging tensor by tensor: the output, rejected inputs, and the state after a full disk."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench.adapter import lora, merge
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from bench.records.checksummed import ResultError


def tensors_of(folder: Path) -> dict:
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def test_the_folder_is_pefts_own_merge_and_loads_in_plain_transformers(modules, inputs, adapter, merge_fields):
    torch, logged = modules.torch, []
    facts = merge.merge(merge.MergeRequest(**merge_fields()), logged.append)
    out = Path(merge_fields()["out"])
    model = modules.transformers.AutoModelForCausalLM.from_pretrained(
        inputs[0], **modules.dtype_argument(torch.float32)
    )
    peft = modules.peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    ours = modules.transformers.AutoModelForCausalLM.from_pretrained(out)
    assert ours.dtype == torch.bfloat16
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.float()(ids).logits, peft(ids).logits, rtol=0.03, atol=0.03)
    merged, before = tensors_of(out), tensors_of(inputs[0])
    assert merged.keys() == before.keys()
    name = "model.layers.0.self_attn.k_proj.weight"
    a, b = lora.read(adapter)[0].pairs[name]
    torch.testing.assert_close(merged[name], (before[name].bfloat16().float() + 2.0 * b @ a).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(merged["model.embed_tokens.weight"], before["model.embed_tokens.weight"].bfloat16())
    assert facts.shards == len(list(inputs[0].glob("*.safetensors"))) == len(logged) - 1
    assert check_model(out).parameters == check_model(inputs[0]).parameters
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == facts.end_ids
    assert not list(out.parent.glob(".*"))


def test_merging_with_base_nf4_rounds_the_weights_as_in_training(modules, inputs, merge_fields):
    merge.merge(merge.MergeRequest(**merge_fields(base="nf4")), lambda _: None)
    merged, before = tensors_of(Path(merge_fields()["out"])), tensors_of(inputs[0])
    name, functional = (
        "model.layers.1.mlp.up_proj.weight",
        modules.bitsandbytes.functional,
    )  # no adapter here: only NF4's rounding
    quantized = functional.quantize_4bit(before[name].bfloat16().float(), quant_type="nf4", compress_statistics=True)
    rounded = functional.dequantize_4bit(*quantized).float()
    assert not bool((rounded == before[name]).all())
    modules.torch.testing.assert_close(merged[name], rounded.bfloat16(), rtol=0, atol=0)
    modules.torch.testing.assert_close(merged["lm_head.weight"], before["lm_head.weight"].bfloat16(), rtol=0, atol=0)


def test_a_merge_that_a_full_disk_ended_begins_again(monkeypatch, merge_fields, tmp_path):
    undisturbed = tmp_path / "undisturbed"
    merge.merge(merge.MergeRequest(**merge_fields(out=str(undisturbed))), lambda _: None)
    real, written = merge.tensor_chunks, []

    def failing_chunks(shapes, get_tensor, torch):
        written.append(shapes)
        for number, chunk in enumerate(real(shapes, get_tensor, torch)):
            if len(written) == 2 and number == 1:
                raise OSError(errno.ENOSPC, "No space left on device", "here")
            yield chunk

    monkeypatch.setattr(merge, "tensor_chunks", failing_chunks)
    out = Path(merge_fields()["out"])
    with pytest.raises(OSError, match="No space left"):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    assert not out.exists()
    (tmp_path / ".merged.part" / "folder").mkdir()
    merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    assert files == {path.name: path.read_bytes() for path in undisturbed.iterdir()}


def test_an_existing_merge_is_verified(merge_fields):
    merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    out, logged = Path(merge_fields()["out"]), []
    merge.merge(merge.MergeRequest(**merge_fields()), logged.append)
    assert logged == [f"{out}: already exists, verified"]
    first = min(out.glob("*.safetensors"))
    first.write_bytes(b"x")
    with pytest.raises(InputError, match=rf"{first.name}: .*SHA256SUMS; remove"):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)


def test_a_shard_that_differs_when_read_back_is_an_error(monkeypatch, modules, tmp_path):
    monkeypatch.setattr(merge, "sha256_of", lambda _path: "0" * 64)
    ones = modules.torch.ones(2, 3, dtype=modules.torch.bfloat16)
    headers = {"a": (ones.dtype, (2, 3))}

    def write() -> None:
        merge.write_verified(tmp_path / "a.safetensors", merge.tensor_chunks(headers, lambda _: ones, modules.torch))

    with pytest.raises(OSError, match=r"a\.safetensors"):
        write()
    monkeypatch.undo()
    write()
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.get_tensor("a").tolist() == [[1.0] * 3] * 2


@pytest.fixture
def refused(merge_fields, tmp_path):
    """Return a function that merges with changed fields, and requires an error."""

    def merge_changed(message: str, error: type[Exception] = InputError, **changes: str) -> None:
        with pytest.raises(error, match=message):
            merge.merge(merge.MergeRequest(**merge_fields(out=str(tmp_path / "other"), **changes)), lambda _: None)

    return merge_changed


def test_another_base_is_refused_and_the_same_one_elsewhere_is_not(inputs, merge_fields, refused, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(inputs[0], model)
    sha256, path = check_model(model).sha256, model / "tokenizer_config.json"
    original = path.read_text()
    path.write_text(original.replace("<|im_start|>assistant", "<|im_start|>bot"))
    refused("tokenizer_config.json: .*; restore it from", InputRejected, model=str(model))
    refused("expected 000000000000", InputRejected, model_sha256="0" * 64)
    path.write_text(original)
    merge.merge(merge.MergeRequest(**merge_fields(model=str(model), model_sha256=sha256)), lambda _: None)


def test_an_adapter_that_is_not_plain_lora_of_this_base_is_rejected_by_name(adapter, refused, tmp_path):
    own = tmp_path / "adapter"
    shutil.copytree(adapter, own)
    config, weights = own / "adapter_config.json", own / "adapter_model.safetensors"
    settings, tensors = json.loads(config.read_text()), load_file(weights)
    for changes, error, message in (
        ({"use_dora": True}, ResultError, "use_dora is True"),
        ({"r": 8}, InputError, r"A \[8, 64\] .*found A \[4, 64\]"),
    ):
        config.write_text(json.dumps(settings | changes))
        refused(message, error, adapter=str(own))
    config.write_text(json.dumps(settings))
    name_a, name_b = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{part}.weight" for part in "AB")
    for name, tensor, message in (
        (name_b, tensors[name_b][:32].contiguous(), r"B \[64, 4\], found .*B \[32, 4\]"),
        (name_a.replace("layers.0", "layers.9"), tensors[name_a].clone(), "layers.9.self_attn.q_proj.weight: "),
        (name_a, tensors[name_a][0].clone(), r"q_proj.weight: expected A \[4, 64\]"),
        ("base_model.model.lm_head.weight", tensors[name_a].clone(), "base_model.model.lm_head.weight: "),
        (name_a, tensors[name_a] * float("nan"), "layers.0.self_attn.q_proj.weight: .*finite"),
    ):
        save_file(tensors | {name: tensor}, weights, {"format": "pt"})
        refused(message, adapter=str(own))
    weights.write_bytes(weights.read_bytes()[:100])
    refused(r"adapter_model\.safetensors: ", adapter=str(own))


def test_too_little_space_is_reported_before_anything_is_written_and_another_folder_is_left_unchanged(
    monkeypatch, merge_fields, tmp_path
):
    monkeypatch.setattr(merge.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(InputError, match=r"0\.00 GB free, .* GB needed; "):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    (tmp_path / "merged").mkdir()
    with pytest.raises(InputError, match=r"merged: .*; name another folder"):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)


def test_a_folder_that_another_user_may_change_is_not_written_to(monkeypatch, merge_fields, tmp_path):
    part, victim = tmp_path / ".merged.part", tmp_path / "victim"
    victim.mkdir()
    (victim / "a file").touch()
    part.symlink_to(victim)
    with pytest.raises(InputError, match=r"\.merged\.part: "):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    assert [path.name for path in victim.iterdir()] == ["a file"]
    part.unlink()
    part.mkdir()
    monkeypatch.setattr(merge.os, "geteuid", lambda: part.stat().st_uid + 1)
    with pytest.raises(InputRejected, match=r"\.merged\.part: "):
        merge.merge(merge.MergeRequest(**merge_fields()), lambda _: None)
    (tmp_path / "card").touch()
    with pytest.raises(InputError, match=r"card/\.merged\.part: "):
        merge.merge(merge.MergeRequest(**merge_fields(out=str(tmp_path / "card" / "merged"))), lambda _: None)
