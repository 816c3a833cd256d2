"""Merging tensor by tensor: what is written, what is refused, and what a full disk leaves behind."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bench.adapter import lora, merge, safetensors_writer
from bench.data.inputs import InputError, InputRejected
from bench.data.model_folder import check_model
from tests.support.faults import raising


def tensors_of(folder: Path) -> dict:
    return {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def test_the_folder_is_pefts_own_merge_and_loads_in_plain_transformers(modules, inputs, adapter, wish):
    torch, said = modules.torch, []
    facts = merge.merge(merge.MergeRequest(**wish()), said.append)
    out = Path(wish()["out"])
    model = modules.transformers.AutoModelForCausalLM.from_pretrained(
        inputs[0], **modules.dtype_argument(torch.float32)
    )
    peft = modules.peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
    ours = modules.transformers.AutoModelForCausalLM.from_pretrained(out)
    assert ours.dtype == torch.bfloat16
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(ours.float()(ids).logits, peft(ids).logits, rtol=0.03, atol=0.03)
    found, before = tensors_of(out), tensors_of(inputs[0])
    assert found.keys() == before.keys()
    name = "model.layers.0.self_attn.k_proj.weight"
    a, b = lora.read(adapter, {one: tuple(tensor.shape) for one, tensor in before.items()}).pairs[name]
    torch.testing.assert_close(found[name], (before[name].bfloat16().float() + 2.0 * b @ a).bfloat16(), rtol=0, atol=0)
    torch.testing.assert_close(found["model.embed_tokens.weight"], before["model.embed_tokens.weight"].bfloat16())
    assert facts.shards == len(list(inputs[0].glob("*.safetensors"))) == len(said) - 1
    assert check_model(out).parameters == check_model(inputs[0]).parameters
    assert (out / "README.md").read_text() == "# A card\n"
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == facts.end_ids
    assert not list(out.parent.glob(".*"))


def test_the_base_as_it_was_trained_on_is_the_one_that_nf4_held(modules, inputs, wish):
    merge.merge(merge.MergeRequest(**wish(base="nf4")), lambda _: None)
    found, before = tensors_of(Path(wish()["out"])), tensors_of(inputs[0])
    name = "model.layers.1.mlp.up_proj.weight"  # no adapter here: NF4's rounding alone
    held = lora.through_nf4(modules, before[name].bfloat16().float())
    assert not bool((held == before[name]).all())
    modules.torch.testing.assert_close(found[name], held.bfloat16(), rtol=0, atol=0)
    modules.torch.testing.assert_close(found["lm_head.weight"], before["lm_head.weight"].bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("full_at", [0, 1])
def test_a_disk_that_is_full_at_any_shard_leaves_nothing_half_done_and_the_merge_goes_on(
    monkeypatch, wish, full_at, tmp_path
):
    quiet = tmp_path / "quiet"
    merge.merge(merge.MergeRequest(**wish(out=str(quiet))), lambda _: None)
    real, written = safetensors_writer._pieces, []

    def pieces(shapes, tensor, torch):
        written.append(shapes)
        for number, piece in enumerate(real(shapes, tensor, torch)):
            if len(written) == full_at + 1 and number == 1:
                raise OSError(errno.ENOSPC, "No space left on device", "here")
            yield piece

    monkeypatch.setattr(safetensors_writer, "_pieces", pieces)
    out = Path(wish()["out"])
    with pytest.raises(OSError, match="No space left"):
        merge.merge(merge.MergeRequest(**wish()), lambda _: None)
    assert not out.exists()
    assert len(list((tmp_path / ".merged.part").glob("*.safetensors"))) == full_at
    said = []
    merge.merge(merge.MergeRequest(**wish()), said.append)
    assert sum("is there already, verified" in words for words in said) == full_at
    same = {path.name: path.read_bytes() for path in out.iterdir()}
    assert same == {path.name: path.read_bytes() for path in quiet.iterdir()}


def test_a_shard_that_was_damaged_meanwhile_is_written_again(monkeypatch, wish, tmp_path):
    monkeypatch.setattr(merge, "_seal", raising(OSError(errno.EIO, "cut")))
    with pytest.raises(OSError, match="cut"):
        merge.merge(merge.MergeRequest(**wish()), lambda _: None)
    monkeypatch.undo()
    first = min((tmp_path / ".merged.part").glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1] + b"\x7f")
    said = []
    merge.merge(merge.MergeRequest(**wish()), said.append)
    assert [words for words in said if first.name in words and "read back" in words]
    merge.merge(merge.MergeRequest(**wish()), said.append)
    assert said[-1].endswith("is there already, verified")
    (Path(wish()["out"]) / first.name).write_bytes(b"x")
    with pytest.raises(InputError, match="not as SHA256SUMS says"):
        merge.merge(merge.MergeRequest(**wish()), lambda _: None)


def test_what_is_read_back_must_be_what_was_written(monkeypatch, modules, tmp_path):
    monkeypatch.setattr(safetensors_writer, "read_back", lambda _path: "0" * 64)
    ones = modules.torch.ones(2, 3, dtype=modules.torch.bfloat16)
    with pytest.raises(safetensors_writer.ShardMismatch, match="read back other bytes"):
        safetensors_writer.write(tmp_path / "a.safetensors", {"a": (2, 3)}, lambda _: ones, modules.torch)
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    safetensors_writer.write(tmp_path / "a.safetensors", {"a": (2, 3)}, lambda _: ones, modules.torch)
    with safe_open(tmp_path / "a.safetensors", "pt") as file:
        assert file.get_tensor("a").tolist() == [[1.0] * 3] * 2
    assert (tmp_path / "a.safetensors").stat().st_size == safetensors_writer.size_of({"a": (2, 3)})


def changed(adapter: Path, place: Path, **settings) -> Path:
    """A copy of the adapter with other settings."""
    shutil.copytree(adapter, place)
    path = place / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return place


def test_what_is_not_this_bases_plain_lora_is_refused_by_name(inputs, adapter, wish, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(inputs[0], model)
    sha256 = check_model(model).sha256
    path = model / "tokenizer_config.json"
    was = path.read_text()
    path.write_text(was.replace("<|im_start|>assistant", "<|im_start|>bot"))
    for given, kind, message in (
        ({"model": str(model)}, InputRejected, "changed since the training"),
        ({"model_sha256": "0" * 64}, InputRejected, "not the model that the adapter was trained on"),
        ({"adapter": str(changed(adapter, tmp_path / "a", use_dora=True))}, InputError, "use_dora: not plain LoRA"),
        ({"adapter": str(changed(adapter, tmp_path / "b", r=8))}, InputError, "rank 4 x 4, adapter_config.json says 8"),
        ({"adapter": str(changed(adapter, tmp_path / "c", r="4"))}, InputError, "r: expected a number above 0"),
        ({"adapter": str(tmp_path / "none")}, InputError, "cannot be read: No such file"),
    ):
        with pytest.raises(kind, match=message):
            merge.merge(merge.MergeRequest(**wish(**given)), lambda _: None)
    path.write_text(was)
    merge.merge(merge.MergeRequest(**wish(model=str(model), model_sha256=sha256)), lambda _: None)

    weights = changed(adapter, tmp_path / "d") / "adapter_model.safetensors"
    tensors = load_file(weights)
    one = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    for change, message in (
        (
            {one.format("B"): tensors[one.format("B")][:32].contiguous()},
            "for a weight of 32 x 64, the base's is 64 x 64",
        ),
        (
            {one.format("A").replace("layers.0", "layers.9"): tensors[one.format("A")].clone()},
            "only one of its two matrices",
        ),
        ({"base_model.model.lm_head.weight": tensors[one.format("A")].clone()}, "no matrix of plain LoRA"),
        ({one.format("A"): tensors[one.format("A")] * float("nan")}, "not every number is finite once merged"),
    ):
        save_file(tensors | change, weights, {"format": "pt"})
        with pytest.raises(InputError, match=message):
            merge.merge(
                merge.MergeRequest(**wish(adapter=str(weights.parent), out=str(tmp_path / "other"))), lambda _: None
            )
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read"):
        merge.merge(
            merge.MergeRequest(**wish(adapter=str(weights.parent), out=str(tmp_path / "other"))), lambda _: None
        )


def test_too_little_room_is_said_before_anything_is_written_and_a_folder_of_something_else_left_alone(
    monkeypatch, wish, tmp_path
):
    monkeypatch.setattr(merge.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(InputError, match=r"0\.00 GB free, .* GB needed; make room"):
        merge.merge(merge.MergeRequest(**wish()), lambda _: None)
    (tmp_path / "merged").mkdir()
    with pytest.raises(InputError, match="holds something else than this merge"):
        merge.merge(merge.MergeRequest(**wish()), lambda _: None)
