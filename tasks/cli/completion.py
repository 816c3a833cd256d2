"""Completion of a command line in a shell: tasks, flags, and values of flags.

A shell's script (completion.bash, .zsh or .fish, from `inv --print-completion-script`) passes the line up to the
cursor to `inv --complete`, which prints one candidate for each line, with a description after a tab. The name of a
value in the help decides what is offered: RUN, SUITE, a choice `a|b`. Without candidates the shell offers files.
Nothing is read but settings and the results folder.
"""

import contextlib
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from invoke.collection import Collection
from invoke.config import Config
from invoke.context import Context
from invoke.exceptions import ParseError
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.vendor.lexicon import Lexicon

from bench.records.paths import RUN_FILE
from bench.records.workloads import SUITES
from tasks.errors import UsageError
from tasks.settings.layers import load
from tasks.settings.sections import SECTIONS, SETTINGS

SHELLS = ("bash", "zsh", "fish")
_FOLDER = Path(__file__).parent
_MAX_RUNS = 100
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # text that no shell executes
Candidate: TypeAlias = tuple[str, str]  # text and description


def read_script(shell: str) -> str:
    """Return the script for a shell. Raises ParseError for a shell without one."""
    if shell not in SHELLS:
        raise ParseError(f"--print-completion-script: expected one of {', '.join(SHELLS)}, found {shell!r}")
    return (_FOLDER / f"completion.{shell}").read_text(encoding="utf-8")


@dataclass
class Completion:
    """Completion over one collection of tasks. `core` has the flags before any task."""

    core: ParserContext
    contexts: Lexicon
    collection: Collection
    config: Config

    def lines(self, line: str) -> Iterator[str]:
        """Yield what `inv --complete` prints for a command line that begins with the program's name."""
        for text, description in self.candidates(line):
            yield f"{text}\t{description}" if description else text

    def candidates(self, line: str) -> list[Candidate]:
        """Return the candidates for the last word of the line, which is empty after a space."""
        *before, word = _split(line)[1:] or [""]
        context, pending, positionals = self._walk(before)
        flag, separator, value = word.partition("=")
        if separator and flag in context.flags:
            return [(f"{flag}={text}", note) for text, note in self._values(context.flags[flag], value)]
        argument = pending or (positionals[0] if positionals else None)
        if word.startswith("-"):
            candidates = self._flags(context)
        else:
            candidates = [] if argument is None else self._values(argument, word)
            candidates += self._tasks(before) if argument is None or argument.optional else []
        return [candidate for candidate in candidates if candidate[0].startswith(word)]

    def _walk(self, tokens: list[str]) -> tuple[ParserContext, Argument | None, list[Argument]]:
        """Return the context after these words, the flag that awaits a value, and the arguments without a flag."""
        context, pending, positionals = self.core, None, list[Argument]()
        for word in tokens:
            is_task = word in self.contexts
            if pending is not None and not (pending.optional and (is_task or word.startswith("-"))):
                pending = None
                continue
            pending = None
            if word.startswith("-"):
                flag = word.partition("=")[0]
                owner = context if flag in context.flags else self.core
                if flag in owner.flags and "=" not in word and owner.flags[flag].takes_value:
                    pending = owner.flags[flag]
            elif positionals and not (is_task and positionals[0].optional):
                positionals.pop(0)
            elif is_task:
                context = self.contexts[word]
                positionals = list(context.positional_args)
        return context, pending, positionals

    def _tasks(self, before: list[str]) -> list[Candidate]:
        groups = [(name, "") for name in self.collection.collections] if before == ["help"] else []
        first = [("help", "explain a task or a group")] if not before else []
        tasks = [
            (name, _summary(self.collection[name].__doc__)) for name in sorted([*self.contexts, *self.contexts.aliases])
        ]
        return [*first, *tasks, *(group for group in groups if group[0] not in self.contexts)]

    def _flags(self, context: ParserContext) -> list[Candidate]:
        arguments = {id(argument): argument for argument in context.flags.values()}.values()
        return [
            (f"--{argument.name}", _summary(argument.help))
            for argument in arguments
            if argument.name is not None and len(argument.name) > 1
        ]

    def _values(self, argument: Argument, word: str) -> list[Candidate]:
        """Return the values of a flag or an argument that begin with `word`; none where files are to be offered."""
        name: str = getattr(argument, "value_name", "") or {"help": "TASK", "list": "GROUP"}.get(
            argument.name or "", ""
        )
        candidates = [(choice, "") for choice in name.split("|")] if "|" in name else []
        if name in _VALUES:
            with contextlib.suppress(UsageError):  # a setting that is refused when the command runs
                candidates = list(_VALUES[name](self))
        head, comma, _ = word.rpartition(",") if name in _LISTS else ("", "", "")
        taken = head.split(",")
        values = [(f"{head}{comma}{text}", note) for text, note in candidates if text not in taken]
        return [value for value in values if value[0].startswith(word)]

    def runs(self) -> Iterator[Candidate]:
        """Yield the ids of the newest runs, newest first."""
        folder = load(Context(self.config)).results_folder
        for path in sorted(folder.glob(f"*/{RUN_FILE}"), reverse=True)[:_MAX_RUNS]:
            if _RUN_ID.fullmatch(path.parent.name) and not path.parent.is_symlink():
                yield path.parent.name, ""

    def suites(self) -> Iterator[Candidate]:
        for _, suite in SUITES.values():
            yield suite.name, ", ".join(trial.name for trial in suite.trials)[:60]
        yield "all", ""

    def trials(self) -> Iterator[Candidate]:
        """Yield the ids of all suites' trials."""
        seen = {trial.name: trial.reason for _, suite in SUITES.values() for trial in suite.trials}
        yield from seen.items()

    def pods(self) -> Iterator[Candidate]:
        """Yield the indexes of the pods."""
        yield from ((str(index), "") for index in range(load(Context(self.config)).fleet.size))

    def settings(self) -> Iterator[Candidate]:
        """Yield all settings and sections."""
        yield from ((".".join(keys), "") for keys in (*SECTIONS, *SETTINGS) if keys)


def _task_values(completion: Completion) -> Iterator[Candidate]:
    yield from completion._tasks([])[1:]


def _group_values(completion: Completion) -> Iterator[Candidate]:
    yield from ((name, "") for name in completion.collection.collections)


_VALUES: dict[str, Callable[[Completion], Iterator[Candidate]]] = {
    "GROUP": _group_values,
    "IDS": Completion.trials,
    "POD": Completion.pods,
    "RUN": Completion.runs,
    "SETTING": Completion.settings,
    "SUITE": Completion.suites,
    "TASK": _task_values,
}
_LISTS = ("IDS",)  # several values, separated by commas


def _split(line: str) -> list[str]:
    """Split a line into words as a shell does; the last one is empty after a space, and may lack a quote's end."""
    try:
        tokens = shlex.split(line)
    except ValueError:
        tokens = line.split()
    return [*tokens, ""] if not tokens or line[-1].isspace() else tokens


def _summary(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0].removesuffix(".")
