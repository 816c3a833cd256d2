"""What of this subject starts a process."""

from pathlib import Path

import pytest

from bench.records.result import TrialStatus
from remote.fleet.ledger import Ledger, LedgerError
from tests.support.hosts.local_fleet import fill

IDS = ["one", "two", "three"]


def test_a_full_disk_is_one_line_and_leaves_no_torn_line_behind(small_disk: Path) -> None:
    path = small_disk / "ledger.jsonl"
    ledger = Ledger.create(path, IDS)
    ledger.started("one", 1, "w", "/f")
    fill(small_disk)

    def go_on() -> None:
        # What is left of the ledger's own page takes a line or none; a line that would need the next page is cut.
        for number in range(2, 10):
            ledger.started("one", number, "w", "x" * 1500)

    with pytest.raises(LedgerError, match=r"ledger\.jsonl: cannot be written: No space left on device"):
        go_on()
    assert path.read_bytes().endswith(b"\n")
    assert Ledger(path).entries == ledger.entries
    assert 1 <= len(ledger.entries["one"].attempts) < 9

    (small_disk / "filler").unlink()
    ledger.ended("one", TrialStatus.SUCCEEDED, None, 1)
    assert Ledger(path).entries == ledger.entries
