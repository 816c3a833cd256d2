"""Installation of a training's adapter and record: from the trial's folder to results/RUN/adapter/ and training.json.

peft loads the adapter folder as it is. The folder gets its final name only when it is complete and the weights match
the record's sha256.
"""

import shutil
from pathlib import Path

from bench.records.atomic_files import sha256_of, write_atomic
from bench.records.checksummed import ResultError
from bench.records.paths import ADAPTER_FOLDER, TRAINING_FILE, TRIALS_FOLDER
from bench.records.run import RunRecord
from bench.records.training import TrainingRecord
from tasks.errors import ConfirmationRequired

WEIGHTS_FILE = "adapter_model.safetensors"


def install(run: RunRecord, folder: Path) -> str | None:
    """Copy both into the run's folder. Returns a line to print; None if the run has no training record.

    Raises ConfirmationRequired and OSError.
    """
    (planned,) = run.planned[:1]
    trial = folder / TRIALS_FOLDER / planned.trial_id
    if not (trial / TRAINING_FILE).exists():
        return None
    try:
        record = TrainingRecord.read(trial / TRAINING_FILE)
    except ResultError as error:
        remedy = f"remove it, then rerun `inv collect --run={run.run_id}`"
        raise ConfirmationRequired.from_error(error, remedy=remedy) from error
    write_atomic(folder / TRAINING_FILE, (trial / TRAINING_FILE).read_bytes())
    source, target = trial / ADAPTER_FOLDER, folder / ADAPTER_FOLDER
    if record.adapter_sha256 is None or not source.is_dir():
        return f"{folder / TRAINING_FILE}: {record.steps_done:,} of {record.steps_planned:,} steps, no adapter"
    if sha256_of(source / WEIGHTS_FILE) != record.adapter_sha256:
        raise ConfirmationRequired(
            f"{source / WEIGHTS_FILE}: its sha256 is not the one in {TRAINING_FILE}", remedy="do not use it"
        )
    partial = folder / f".{ADAPTER_FOLDER}.part"
    shutil.rmtree(partial, ignore_errors=True)
    shutil.copytree(source, partial)
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return f"{target}: the adapter of step {record.adapter_step:,}, sha256 {record.adapter_sha256[:12]}, verified"
