"""Tables on a narrow terminal: every column is there, every cell whole."""

import io

from rich.console import Console

from tasks.cli.terminal import table


def test_a_narrow_terminal_folds_what_an_operator_would_copy_and_cuts_nothing() -> None:
    ocid = f"ocid1.nodepool.oc1.eu-frankfurt-1.{'a' * 60}"
    rows = table("pool", "shape", "$ an hour", "OCID")
    rows.add_row("pool1", "VM.GPU.A10.1", "6.00", ocid)
    narrow = Console(file=io.StringIO(), soft_wrap=True, width=80)
    narrow.print(rows)
    said = narrow.file.getvalue()  # type: ignore[attr-defined]
    assert said.splitlines()[1].split()[:3] == ["pool1", "VM.GPU.A10.1", "6.00"]
    assert "".join(line.rsplit(" ", 1)[-1] for line in map(str.rstrip, said.splitlines()[1:])) == ocid
