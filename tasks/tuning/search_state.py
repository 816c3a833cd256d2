"""State of a search on disk, `results/tune/<id>/`, from which it can be resumed.

The result of each candidate is in the folder of its run.

tune.json      GPU, model and data, the candidates with their predictions, and the runs started so far
answer.json    the Pareto front of speed against memory; written last
best.json      the fastest configuration as a trial, for `inv bench --trial-file`
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.records import TrialError, schema
from bench.records.atomic_files import write_atomic
from bench.records.checksummed import ResultError, refuse_other_version
from bench.records.version import SCHEMA_VERSION, VERSION
from tasks.errors import UsageError, results_write_errors
from tasks.fleet.run_store import ANSWER_FILE, BEST_FILE, SEARCH_FILE, SEARCH_FOLDER, make_folder
from tasks.tuning.space import Candidate, MemoryLimit, TrialObservation


@dataclass(kw_only=True)
class TuneRecord:
    """One search. `gpu` is None on CPUs; `limit_bytes` is None without a limit; `longest` is the rows' length.

    `depth` is the model's number of layers. `waves` and `final` are run ids. `held_variants` are finalists that are no
    candidates: the fastest with as many layers held as fit.
    """

    tune_id: str
    gpu: str | None
    model_sha256: str
    data_sha256: str
    longest: int
    depth: int
    limit_bytes: int | None
    settings: dict[str, Any]
    candidates: list[Candidate]
    inputs: dict[str, Any]
    waves: list[str] = field(default_factory=list)
    final: str | None = None
    held_variants: list[Candidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder: Path | None = None  # not a field, so that it is not written

    @property
    def runs(self) -> list[str]:
        """The ids of all runs so far."""
        return [*self.waves, *([] if self.final is None else [self.final])]

    def memory_limit(self, observed: Sequence[TrialObservation] = ()) -> MemoryLimit:
        """Return the memory limit, with predictions corrected by these observations."""
        return MemoryLimit(self.limit_bytes, observed)

    def add_run(self, run_id: str, *, is_final: bool) -> None:
        """Record that this run was started. Raises OSError."""
        if is_final:
            self.final = run_id
        else:
            self.waves.append(run_id)
        self.write()

    def write(self) -> None:
        """Write the record. Raises OSError."""
        header = {"schema_version": SCHEMA_VERSION, "version": VERSION}
        _write_json(self._existing_folder / SEARCH_FILE, {**header, **schema.to_json(self)})

    def write_answer(self, document: Mapping[str, Any], best: str) -> None:
        """Write the answer, and the best configuration as a trial file. Raises OSError."""
        write_atomic(self._existing_folder / BEST_FILE, best.encode())
        _write_json(self._existing_folder / ANSWER_FILE, document)

    def remove_answer(self) -> None:
        """Remove the answer, and the best configuration that a training would take. Raises OSError."""
        for name in (ANSWER_FILE, BEST_FILE):
            (self._existing_folder / name).unlink(missing_ok=True)

    @property
    def _existing_folder(self) -> Path:
        if self.folder is None:
            raise ValueError("this search has no folder yet")
        return self.folder


def create(results_folder: Path, record: TuneRecord) -> TuneRecord:
    """Create the folder of a new search and write its record. Raises UsageError."""
    with results_write_errors(results_folder):
        (results_folder / SEARCH_FOLDER).mkdir(parents=True, exist_ok=True)
        record.tune_id, record.folder = make_folder(results_folder / SEARCH_FOLDER, record.tune_id)
        record.write()
    return record


def find(results_folder: Path, tune_id: str | None) -> TuneRecord:
    """Read the search with this id, or the newest. Raises UsageError, which lists known searches."""
    known = sorted((path.parent.name for path in results_folder.glob(f"{SEARCH_FOLDER}/*/{SEARCH_FILE}")), reverse=True)
    if not known:
        raise UsageError(
            f"{results_folder / SEARCH_FOLDER}: there is no search yet", remedy="start one with `inv tune`"
        )
    name = tune_id or known[0]
    if name not in known:
        raise UsageError(f"search {name!r} does not exist", remedy=f"known searches: {', '.join(known[:5])}")
    return _read(results_folder / SEARCH_FOLDER / name)


def _read(folder: Path) -> TuneRecord:
    path = folder / SEARCH_FILE
    try:
        document = schema.parse(path.read_bytes())
        refuse_other_version(str(path), document.get("schema_version"), document.get("version"))
        del document["schema_version"], document["version"]
        record = schema.from_json(TuneRecord, document)
    except ResultError as error:
        raise UsageError.from_error(error) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TrialError) as error:
        raise UsageError(f"{path}: invalid: {error}", remedy="start a new search with `inv tune`") from error
    record.folder = folder
    return record


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    write_atomic(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
