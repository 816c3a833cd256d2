"""Every `inv ...` command in a message, a help text or a document can be typed: its task and flags exist."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.exceptions import ParseError
from invoke.parser import Parser

from tasks import ns
from tasks.cli.help import section_of
from tasks.cli.parser import patch_parser
from tasks.cli.program import _InvProgram
from tasks.errors import UsageError
from tests.support.paths import ROOT

COMMAND = re.compile(r"`(?:\.venv/bin/)?inv (?P<arguments>[^`]+)`")
PLACEHOLDER = re.compile(r"\{[^{}]*\}")
SOURCES = ("tasks", "remote", "reports", "bench")
DOCUMENTS = ("README.md", "docs", "image/README.md", "manifests/README.md")
# Documents that describe the past name old commands.
HISTORY = ("decisions.md", "measurements.md", "performance.md")
OPTIONAL_PART = re.compile(r"\[[^\]]*\]|\.\.\.|\N{HORIZONTAL ELLIPSIS}")


def texts(path: Path) -> Iterator[str]:
    """Yield the string literals of a module, with `{}` for each value of an f-string; or a document."""
    source = path.read_text(encoding="utf-8")
    if "inv " not in source:
        return
    if path.suffix != ".py":
        yield source
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def printed_commands() -> Iterator[tuple[Path, str]]:
    """Yield every command with its file."""
    modules = (path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py")))
    documents = (
        path
        for name in DOCUMENTS
        for path in ([ROOT / name] if name.endswith(".md") else sorted((ROOT / name).rglob("*.md")))
        if path.name not in HISTORY
    )
    for path in (*modules, *documents):
        for text in texts(path):
            for match in COMMAND.finditer(text):
                yield path, " ".join(PLACEHOLDER.sub("X", match["arguments"]).split())


@pytest.fixture(scope="module")
def parser() -> Parser:
    patch_parser()
    return Parser(initial=_InvProgram().initial_context, contexts=ns.to_contexts())


def problem_of(parser: Parser, arguments: list[str]) -> str | None:
    """Return the parser's error; None if the command is complete, or only lacks values, as in "see `inv compare`"."""
    problem = None
    for missing in range(4):
        try:
            parser.parse_argv([*arguments, *["X"] * missing])
        except (ParseError, UsageError) as error:
            problem = problem or str(error)
        else:
            return None
    return problem


def test_every_printed_command_can_be_typed(parser: Parser) -> None:
    files: dict[str, list[str]] = {}
    for path, command in printed_commands():
        files.setdefault(command, []).append(str(path.relative_to(ROOT)))
    problems: list[str] = []
    count = 0
    for command, paths in files.items():
        arguments = shlex.split(OPTIONAL_PART.sub("", command).partition("|")[0])
        if arguments[:1] == ["help"]:
            arguments = [word for word in arguments[1:] if section_of(word) is None]
        if not arguments or arguments[0] in ("X", "TASK", "GROUP") or not re.fullmatch(r"[a-z-][^*]*", arguments[0]):
            continue  # the command is a value, a group of commands, or a sentence about any command
        count += len(paths)
        if (problem := problem_of(parser, arguments)) is not None:
            problems.append(f"{', '.join(paths)}: {command}: {problem}")
    assert not problems, "\n".join(problems)
    assert count > 200
