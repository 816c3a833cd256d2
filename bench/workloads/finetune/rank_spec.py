"""The parent's parameters for its ranks, besides the trial: one small file in their folder. Standard library only."""

import json
from dataclasses import dataclass
from pathlib import Path

from bench.records import schema

SPEC_FILE, STOP_FILE = "job.json", "stop"


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """The paths of this attempt's ranks, and the digests computed before they were started.

    `resume` is the checkpoint to resume from. Only rank 0 reads `checkpoints`, `resume` and `out`; `examples` is the
    cache on each machine.
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
        return schema.from_json(cls, json.loads((folder / SPEC_FILE).read_text(encoding="utf-8")), SPEC_FILE)
