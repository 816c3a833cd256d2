"""Tests of tables on a narrow terminal: every column is there, every cell complete."""

import ast
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from tasks.cli.streams import SanitizedStream, wrap
from tasks.cli.terminal import console, plain_table, print_path, read_line, ruled_table
from tests.support.paths import ROOT


def test_a_narrow_terminal_folds_what_an_operator_would_copy_and_cuts_nothing() -> None:
    ocid = f"ocid1.nodepool.oc1.eu-frankfurt-1.{'a' * 60}"
    rows = plain_table("pool", "shape", "$ an hour", "OCID")
    rows.add_row("pool1", "VM.GPU.A10.1", "6.00", ocid)
    narrow = Console(file=io.StringIO(), soft_wrap=True, width=80)
    narrow.print(rows)
    output = narrow.file.getvalue()  # type: ignore[attr-defined]
    assert output.splitlines()[1].split()[:3] == ["pool1", "VM.GPU.A10.1", "6.00"]
    assert "".join(line.rsplit(" ", 1)[-1] for line in map(str.rstrip, output.splitlines()[1:])) == ocid


@pytest.mark.parametrize("width", [40, 60, 120])
def test_where_columns_have_no_room_each_row_is_a_block_with_every_cell_whole(width: int) -> None:
    cells = {"configuration": "no-checkpointing", "kind": "distributed", "step s": "12.5", "useful tok/s": "1,234"}
    rows = ruled_table(*cells, "x baseline", right=("step s",))
    for column in rows.columns[1:]:
        column.no_wrap = True
    rows.add_row(*cells.values(), "11.50 (11.43-11.57)")
    rows.add_row("packed", "training", "-", "", "1")
    narrow = Console(file=io.StringIO(), width=width)
    narrow.print(rows)
    output = narrow.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, output.splitlines())) <= width
    text = " ".join(output.split())
    assert all(cell in text for cell in (*list(cells)[1:], *cells.values(), "11.50 (11.43-11.57)"))
    if width < 80:
        assert "\nno-checkpointing\n  kind distributed; step s 12.5;" in f"\n{output}"
        assert text.endswith("packed kind training; x baseline 1")


TERMINALS: dict[str, tuple[dict[str, str], bool]] = {
    "a terminal of this machine": ({"TERM": "xterm-256color"}, True),
    "the text console": ({"TERM": "linux"}, False),
    "a terminal without sequences": ({"TERM": "dumb"}, False),
    "at the other end of SSH": ({"TERM": "xterm-256color", "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, False),
}


@pytest.mark.parametrize("case", TERMINALS)
def test_a_path_is_a_link_where_the_terminal_takes_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, is_link = TERMINALS[case]
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    for name, value in {**variables, "COLUMNS": "40"}.items():
        monkeypatch.setenv(name, value)
    content = io.BytesIO()
    stdout = SanitizedStream(content, encoding="utf-8", write_through=True)
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", stdout)
    print_path(Path("/r/ä b/20261122-101500-quick/\x1b]8;;x\x1b\\/report/index.html"))
    shown = "/r/ä b/20261122-101500-quick/\\u001b]8;;x\\u001b\\/report/index.html"
    uri = "file:///r/%C3%A4%20b/20261122-101500-quick/%1B%5D8%3B%3Bx%1B%5C/report/index.html"
    pattern = rf"\x1b\]8;id=\d+;{re.escape(uri)}\x1b\\{re.escape(shown)}\x1b\]8;;\x1b\\\n"
    output = content.getvalue().decode()
    assert re.fullmatch(pattern if is_link else f"{re.escape(shown)}\n", output)


MESSAGE = (
    "results/20261122-101500-quick/ledger.jsonl: cannot be written: No space left on device; free some space there, "
    "then run `inv bench --resume=20261122-101500-quick`"
)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("draws", [True, False])
def test_a_line_breaks_between_words_and_commands_stay_whole(
    draws: bool, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    content = io.BytesIO()
    stdout = SanitizedStream(content, encoding="utf-8", write_through=True)
    monkeypatch.setattr("sys.stdout", stdout)
    write = (lambda text: console().print(Text(text))) if draws else print
    write(MESSAGE)
    assert content.getvalue().decode() == f"{MESSAGE}\n", "a pipe gets one line"
    content.truncate(0)
    content.seek(0)
    stdout.is_terminal = True
    stdout.isatty = lambda: True  # type: ignore[method-assign]
    write(MESSAGE)
    lines = content.getvalue().decode().splitlines()
    assert " ".join(line.rstrip() for line in lines) == MESSAGE
    assert max(map(len, lines)) <= width
    assert any("`inv bench --resume=20261122-101500-quick`" in line for line in lines)


def test_a_question_is_wrapped_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("builtins.input", lambda prompt: f"{prompt}typed ")
    text = "build VM, a name from ~/.ssh/config [none]:"
    assert read_line(f"{text} ") == "[none]: typed"
    assert capsys.readouterr().out == "build VM, a name from ~/.ssh/config\n"


def test_json_and_indented_lines_keep_their_form_on_a_terminal() -> None:
    document = json.dumps({"found": " ".join(["word"] * 30)}, indent=1)
    assert wrap(document, 40) == document
    lines = wrap(f"  {'word ' * 20}end", 40).split("\n")
    assert len(lines) == 3
    assert all(line.startswith("  word") for line in lines)


def test_only_the_module_terminal_makes_a_console_and_every_live_drawing_gets_one() -> None:
    """A Live with a console of its own prints rich's sequences as text (tasks.cli.streams)."""
    problems = []
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name, keywords = ast.unparse(call.func).rpartition(".")[2], {keyword.arg for keyword in call.keywords}
            is_recorder = "record" in keywords
            if name == "Console" and path.name != "terminal.py" and not is_recorder:
                problems.append(f"{path.name}:{call.lineno}: {name}")
            draws = name in ("Live", "track", "Progress", "Status") and "rich" in _imported_from(path, name)
            if draws and "console" not in keywords:
                problems.append(f"{path.name}:{call.lineno}: {name} without console")
    assert problems == []


def _imported_from(path: Path, name: str) -> str:
    """Return the module from which a file imports this name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            return node.module or ""
    return ""
