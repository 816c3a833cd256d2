"""The ledger on a full disk."""

from pathlib import Path

import pytest

from bench.records.status import Outcome, TrialStatus
from remote.fleet.ledger import Ledger, LedgerError
from tests.support.hosts.local_fleet import fill_disk

IDS = ["one", "two", "three"]


def test_a_full_disk_is_one_line_and_leaves_no_torn_line_behind(small_disk: Path) -> None:
    path = small_disk / "ledger.jsonl"
    ledger = Ledger.create(path, IDS)
    ledger.record_start("one", 1, "w", "/f")
    fill_disk(small_disk)

    def fill_ledger() -> None:
        # The rest of the ledger's page has space for one line at most; a line that needs the next page is truncated.
        for number in range(2, 10):
            ledger.record_start("one", number, "w", "x" * 1500)

    with pytest.raises(LedgerError, match=r"ledger\.jsonl: .*No space left on device"):
        fill_ledger()
    assert path.read_bytes().endswith(b"\n")
    assert Ledger(path).entries == ledger.entries
    assert 1 <= len(ledger.entries["one"].attempts) < 9

    (small_disk / "filler").unlink()
    ledger.record_end("one", Outcome(TrialStatus.SUCCEEDED), 1)
    assert Ledger(path).entries == ledger.entries
