"""Is this the base that an adapter was trained on? By content, and not by name."""

from pathlib import Path

from bench.data.inputs import InputRejected
from bench.data.model_folder import check_model
from bench.records.atomic_files import sha256_of
from bench.workloads.finetune.checkpoints.checkpoint import TOKENIZER_FILES


def check_base(model: Path, adapter: Path, model_sha256: str | None) -> None:
    """Refuse another base than the one that was trained on. Raises Refused and InputError.

    The adapter's folder has the tokenizer and the template of the training, so a change of these is named as such.
    """
    found = check_model(model)
    for name in TOKENIZER_FILES:
        both = [folder / name for folder in (adapter, model)]
        if all(path.is_file() for path in both) and len(set(map(sha256_of, both))) > 1:
            raise InputRejected(
                f"{model / name}: changed since the training, whose copy is {adapter / name}; the model would be asked "
                "in another form than it was trained in; put the file back"
            )
    if model_sha256 is not None and found.sha256 != model_sha256:
        raise InputRejected(
            f"{model}: not the model that the adapter was trained on: sha256 {found.sha256[:12]}, expected "
            f"{model_sha256[:12]}; name that one with model.path"
        )
