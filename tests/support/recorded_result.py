"""In-memory replacement for the record that a workload writes measurements to."""

from typing import Any

from bench.records.bootstrap import Interval


class InMemoryRecord:
    """Record whose `added` holds each measurement as a dictionary; `find` filters them by name and context."""

    def __init__(self, trial: Any = None, **facts: Any) -> None:
        self.trial, self.fingerprint = trial, facts
        self.flags: list[str] = []
        self.peak_vram_bytes: int | None = None
        self.added: list[dict[str, Any]] = []

    def add(self, name: str, value: float | Interval | None, **more: Any) -> None:
        if isinstance(value, Interval):
            value, more = value.median, {"interval": value, **more}
        self.added.append({"name": name, "value": value, **more})

    def find(self, name: str, **context: Any) -> list[dict[str, Any]]:
        return [entry for entry in self.added if entry["name"] == name and context.items() <= entry.items()]
