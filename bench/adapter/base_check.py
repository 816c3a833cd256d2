"""Check that a base is the one that an adapter was trained on, by content and not by name."""

from pathlib import Path

from bench.data.inputs import InputRejected
from bench.data.model_folder import check_model
from bench.records.atomic_files import sha256_of
from bench.workloads.finetune.checkpoints.checkpoint import TOKENIZER_FILES


def check_base(model: Path, adapter: Path, model_sha256: str | None) -> None:
    """Raise InputRejected if `model` is not the base of the training, InputError if it cannot be used.

    The adapter's folder holds copies of the training's tokenizer and chat template, so a change of these is reported as
    such.
    """
    facts = check_model(model)
    for name in TOKENIZER_FILES:
        copies = [folder / name for folder in (adapter, model)]
        if all(path.is_file() for path in copies) and len(set(map(sha256_of, copies))) > 1:
            raise InputRejected(
                f"{model / name}: changed since the training, so prompts would differ from those of the training",
                remedy=f"restore it from {adapter / name}",
            )
    if model_sha256 is not None and facts.sha256 != model_sha256:
        raise InputRejected(
            f"{model}: not the model that the adapter was trained on: sha256 {facts.sha256[:12]}, expected "
            f"{model_sha256[:12]}",
            remedy="set model.path to that model",
        )
