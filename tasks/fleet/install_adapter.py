"""A training's adapter and record, from its trial's folder to the run's: results/RUN/adapter/ and training.json.

Plain peft loads the folder. It gets its name when every file is in it and the weights have the sha256 of the record.
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
    """Put them there; a line for people, None where the run has none. Raises Refused and OSError."""
    (planned,) = run.planned[:1]
    trial = folder / TRIALS_FOLDER / planned.trial_id
    if not (trial / TRAINING_FILE).exists():
        return None
    try:
        record = TrainingRecord.read(trial / TRAINING_FILE)
    except ResultError as error:
        raise ConfirmationRequired(
            f"{error}; `inv collect --run={run.run_id}` fetches it again once it is removed"
        ) from None
    write_atomic(folder / TRAINING_FILE, (trial / TRAINING_FILE).read_bytes())
    source, place = trial / ADAPTER_FOLDER, folder / ADAPTER_FOLDER
    if record.adapter_sha256 is None or not source.is_dir():
        return f"{folder / TRAINING_FILE}: {record.steps_done:,} of {record.steps_planned:,} steps, no adapter"
    if sha256_of(source / WEIGHTS_FILE) != record.adapter_sha256:
        raise ConfirmationRequired(
            f"{source / WEIGHTS_FILE}: its sha256 is not the one in {TRAINING_FILE}; do not use it"
        )
    part = folder / f".{ADAPTER_FOLDER}.part"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(source, part)
    shutil.rmtree(place, ignore_errors=True)
    part.rename(place)
    return f"{place}: the adapter of step {record.adapter_step:,}, sha256 {record.adapter_sha256[:12]}, verified"
