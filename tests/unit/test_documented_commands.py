"""Every command in a code block of a document is accepted by the program that it is for, with its flags and values."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from invoke.exceptions import ParseError
from invoke.parser import Parser

from bench.commands import cli
from tasks import ns
from tasks.cli.flags import Command
from tasks.cli.parser import patch_parser
from tasks.cli.program import _InvProgram
from tasks.errors import UsageError
from tests.support.documents import BY_HAND, DOCUMENTS, PROGRAMS, TUTORIALS, blocks, commands
from tests.support.paths import ROOT

# Documents that describe the past name old commands.
HISTORY = ("CHANGELOG.md", "decisions.md", "measurements.md")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
PLACEHOLDER = re.compile(r"[A-Z_]+")
SENTENCE = re.compile(
    r"`(?:\.venv/bin/)?(inv [a-z][^`*]*)`|(?:next|type): (inv [^;,\n]+)|(inv [a-z][^#<`]*)(?:<[^#]*)?  # "
)
UNTYPED = re.compile(r"\[[^\]]*\]|\.\.\.|\N{HORIZONTAL ELLIPSIS}")
EXAMPLES = {"SUITE": "quick", "TRIAL": "optimized"}


@pytest.fixture(scope="module")
def parser() -> Parser:
    patch_parser()
    return Parser(initial=_InvProgram().initial_context, contexts=ns.to_contexts())


def check_inv(parser: Parser, arguments: list[str]) -> None:
    """Parse the commands of `inv`, and the values of their flags. Raises ParseError or UsageError."""
    for context in parser.parse_argv(arguments):
        command = ns[context.name] if context.name else None
        if not isinstance(command, Command):
            continue
        for parameter, flag in command.flags.items():
            value = context.args[(flag.name or parameter).replace("_", "-")].value
            if not (isinstance(value, str) and PLACEHOLDER.fullmatch(value)):
                flag.parse(f"{context.name} {parameter}", value)


def check(parser: Parser, program: str, arguments: list[str]) -> None:
    """Raise an error if the program would not accept these arguments."""
    if program == "inv":
        check_inv(parser, arguments)
    elif program == "make":
        unknown = [word for word in arguments if "=" not in word and word not in TARGETS]
        assert not unknown, f"no such target: {unknown}"
    elif arguments[:2] == ["-m", "bench"]:
        cli._parser().parse_args([EXAMPLES.get(word, word) for word in arguments[2:]])
    elif arguments[:1] == ["-m"]:
        path = ROOT / arguments[1].replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir() or "." not in arguments[1], arguments[1]
    elif program == "pytest":
        missing = [word for word in arguments if word.startswith("tests/") and not (ROOT / word).exists()]
        assert not missing, f"no such test: {missing}"


@pytest.mark.parametrize(
    "document",
    [path for path in DOCUMENTS if path.name not in HISTORY],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_command_of_a_code_block_is_accepted(document: Path, parser: Parser) -> None:
    problems = []
    for block in blocks(document):
        for program, *arguments in commands(block):
            try:
                check(parser, program, arguments)
            except (ParseError, UsageError, SystemExit, AssertionError, KeyError) as error:
                problems.append(f"line {block.line}: {program} {' '.join(arguments)}: {error}")
    assert not problems, "\n".join(problems)


def literals(path: Path) -> Iterator[str]:
    """Yield the strings of a module but docstrings, with VALUE for each value in them; or a document's text."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield source
        return
    tree = ast.parse(source) if "inv " in source else ast.Module(body=[], type_ignores=[])
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    nested = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in documentation | nested:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "VALUE" for part in parts)


def test_every_command_in_a_message_or_a_sentence_is_accepted(parser: Parser) -> None:
    modules = [path for package in ("bench", "remote", "reports", "tasks") for path in (ROOT / package).rglob("*.py")]
    problems, count = [], 0
    for path in (*modules, *(path for path in DOCUMENTS if path.name not in HISTORY)):
        for command in {"".join(match) for text in literals(path) for match in SENTENCE.findall(text)}:
            arguments = shlex.split(UNTYPED.sub("", command).partition("|")[0])[1:]
            if arguments[0] in ("VALUE", "help"):
                continue
            count += 1
            errors = [error_of(parser, [*arguments, *["VALUE"] * missing]) for missing in range(3)]
            if all(errors):  # also with the values that a mention such as "see `inv compare`" leaves out
                problems.append(f"{path.name}: {command}: {errors[0]}")
    assert count > 200
    assert problems == []


def error_of(parser: Parser, arguments: list[str]) -> str:
    try:
        check_inv(parser, arguments)
    except (ParseError, UsageError, KeyError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


def test_a_block_of_commands_in_a_tutorial_is_typed_or_by_hand() -> None:
    kinds = {("sh",), ("sh", "machine"), ("sh", BY_HAND)}
    tutorials = {
        path: [block for block in blocks(path) if block.info[:1] == ("sh",)] for path in TUTORIALS.glob("*.md")
    }
    assert [(path.name, block.line) for path in tutorials for block in tutorials[path] if block.info not in kinds] == []


def test_commands_of_the_documents_are_found() -> None:
    shown = [command for path in DOCUMENTS for block in blocks(path) for command in commands(block)]
    assert len(shown) > 100
    assert {program for program, *_ in shown} == set(PROGRAMS)
