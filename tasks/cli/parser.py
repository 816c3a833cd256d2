"""Parser of the command line: optional flag values before a task name, and errors with a suggestion."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

from invoke.exceptions import ParseError
from invoke.parser import parser
from invoke.parser.context import ParserContext
from invoke.vendor.lexicon import Lexicon

from tasks.cli.flags import load_target
from tasks.settings.sources import env_name

_HELP, _RUN_ID = "help", re.compile(r"\d{8}-\d{6}-|latest$")


def suggest(word: str, known: Iterable[str], otherwise: str = "`inv --list --all` shows all tasks") -> str:
    """Return the end of a message about an unknown word: the nearest known word, or `otherwise`."""
    near = difflib.get_close_matches(word.lower(), list(known), 1, 0.3 if len(word) == 2 else 0.6)
    return f"; did you mean {near[0]}?" if near else f"; {otherwise}"


def patch_parser() -> None:
    """Make Invoke's parser create a PatchedParser, which it looks up in its module as `ParseMachine`."""
    parser.ParseMachine = PatchedParser  # type: ignore[misc]


class PatchedParser(parser.ParseMachine):
    """Invoke's parser with three differences: a task's name ends a flag with an optional value, an argument does not
    begin with `-`, and errors name the task and the nearest known word. A shell's completion reads their context."""

    def __init__(self, initial: ParserContext, contexts: Lexicon, ignore_unknown: bool) -> None:
        super().__init__(initial, Lexicon(), ignore_unknown)  # type: ignore[no-untyped-call] # calls complete_context
        self.contexts = contexts  # Invoke would copy each, and once more the one that it switches to

    def handle(self, token: str) -> None:
        flag = self.flag
        if flag is not None and flag.optional and flag.raw_value is None and token in self.contexts:
            self.complete_flag()  # without a value, as at the end of the command line
        elif token in self.contexts and self._expects_argument:
            for argument in self.context.missing_positional_args:
                if getattr(argument, "ends_at_task", False):
                    argument._value = ""
        elif self._is_unknown(token):
            self._refuse(token)
        elif token in self.initial.flags and self._expects_argument and not self.waiting_for_flag_value:
            self._handle_core_flag(token)  # Invoke would take it for the argument
            return
        super().handle(token)

    def _handle_core_flag(self, token: str) -> None:
        flag = self.initial.flags[token]
        if flag.name != "help":
            self.switch_to_flag(token)
            return
        flag.value = self.context.name
        for argument in self.context.missing_positional_args:
            argument.optional = True

    def complete_flag(self) -> None:
        flag = self.flag
        if flag is not None and flag.takes_value and flag.raw_value is None and not flag.optional:
            raise ParseError(f"{self._task}--{flag.names[0]}: expected a value after it", self.context)
        super().complete_flag()

    def switch_to_flag(self, flag: str, inverse: bool = False) -> None:
        super().switch_to_flag(flag, inverse)
        current = self.flag
        if current is not None and current.takes_value and current.kind is not list and current.raw_value is not None:
            raise ParseError(f"{self._task}--{current.names[0]}: given twice; give it once", self.context)

    def see_value(self, value: Any) -> None:
        name = self.flag.names[0] if self.flag else ""
        self._refuse_blank(value, f"--{name}")
        try:
            super().see_value(value)
        except ValueError as error:
            raise ParseError(f"{self._task}--{name}: expected a whole number, found {value!r}", self.context) from error

    def see_positional_arg(self, value: Any) -> None:
        self._refuse_blank(value, self.context.missing_positional_args[0].name)
        super().see_positional_arg(value)

    def _refuse_blank(self, value: str, name: str | None) -> None:
        """Raise ParseError for a blank value, an unset variable in a script: `--run=$UNSET` would be the newest run."""
        if not value.strip():
            problem = f"{self.context.name or 'inv'}: {name}: expected a value, found nothing"
            raise ParseError(f"{problem}; is a shell variable unset?", self.context)

    def complete_context(self) -> None:
        missing = self.context.missing_positional_args if self.context else []
        for argument in missing:
            if argument.optional:
                argument._value = ""  # the raw value stays None: nothing was typed
        if missing := [argument for argument in missing if not argument.optional]:
            names = " and ".join(str(argument.name).upper() for argument in missing)
            raise ParseError(f"{self._task}expected {names}; `inv --help {self.context.name}` explains", self.context)
        super().complete_context()

    def _is_unknown(self, token: str) -> bool:
        if self.ignore_unknown or self.waiting_for_flag_value or not self.context:
            return False
        flags = (flags_by_name for of in (self.context, self.initial) for flags_by_name in (of.flags, of.inverse_flags))
        is_argument = self._expects_argument and not (token.startswith("-") and len(token) > 1)
        return not is_argument and not any(token in known for known in (self.contexts, *flags))

    @property
    def _expects_argument(self) -> bool:
        return bool(self.context and self.context.missing_positional_args)

    def _refuse(self, token: str) -> None:
        task, known = self.context.name, self.context.flags
        if not token.startswith("-"):
            if task and token == _HELP:
                advice = f"; type `inv help {task}`"
            elif f"--{token}" in known:
                advice = f"; did you mean --{token}?"
            elif "--run" in known and _RUN_ID.match(token):
                advice = f"; did you mean --run={token}?"
            else:
                advice = suggest(token, self.contexts)
            raise ParseError(f"{token}: no such task{advice}", self.context)
        flags = [flag for flag in known if len(token) > 2 or flag.startswith(f"-{token}")]
        advice = f"`inv --help {task}` shows all flags" if task else "`inv --help` shows all"
        section = "train" if task == "data.check" else task
        if task and (keys := load_target("tasks.settings.layers:setting_of")(token, section)) is not None:
            once = f"`{env_name(keys)}=VALUE inv {task}`"
            setting = f"{'.'.join(keys)} is a setting; once: {once}; always: in ~/.invoke.yaml"
            raise ParseError(f"{self._task}{token}: no such flag, but {setting}", self.context)
        if not task and any(token in other.flags for other in self.contexts.values()):
            raise ParseError(f"{token}: a flag of a task follows its name; type `inv TASK {token}`", self.context)
        raise ParseError(f"{self._task}{token}: no such flag{suggest(token, flags, advice)}", self.context)

    @property
    def _task(self) -> str:
        return f"{self.context.name}: " if self.context and self.context.name else ""


# The metaclass gives each class its own states; without these lines the subclass would have none.
PatchedParser._class_states = parser.ParseMachine._class_states
PatchedParser._class_transitions = parser.ParseMachine._class_transitions
