"""What the parent tells its ranks, beside the trial: one small file in their folder. Standard library alone."""

import json
from dataclasses import dataclass
from pathlib import Path

from bench.records import schema

JOB_FILE, STOP_FILE = "job.json", "stop"


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """Where this attempt's ranks find and leave things, and what was found out before they were started.

    `resume` is the checkpoint to go on from. Only rank 0 reads `checkpoints`, `resume` and `out`; `examples` is the
    cache of each machine.
    """

    checkpoints: str
    resume: str | None
    out: str
    examples: str
    model_sha256: str
    data_sha256: str

    def to_text(self) -> str:
        return json.dumps(schema.to_json(self))

    @classmethod
    def read(cls, folder: Path) -> "RankSpec":
        return schema.from_json(cls, json.loads((folder / JOB_FILE).read_text(encoding="utf-8")), JOB_FILE)
