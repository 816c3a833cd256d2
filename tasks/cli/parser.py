"""What is typed: `inv bench --resume collect report`, and what is wrong with a word that Invoke does not know."""

import difflib
from collections.abc import Iterable
from typing import Any

from invoke.exceptions import ParseError
from invoke.parser import parser

from tasks.errors import UsageError


def suggest(word: str, known: Iterable[str], otherwise: str = "`inv --list` shows all tasks") -> str:
    """The end of a message about an unknown word."""
    near = difflib.get_close_matches(word, list(known), 1, 0.3 if len(word) == 2 else 0.6)
    return f"; did you mean {near[0]}?" if near else f"; {otherwise}"


def refuse_empty_values(typed: Iterable[Any]) -> None:
    """Raise UsageError where a flag or argument of a task is blank: an unset variable in a script, as a rule.

    `typed` are Invoke's parser contexts. Taken as it is, `--run=$UNSET` would mean the newest run.
    """
    for one in typed:
        for argument in one.args.values():
            given = argument.value if argument.kind is list else [argument.raw_value]
            if any(isinstance(value, str) and not value.strip() for value in given or ()):
                name = argument.name if argument.positional else f"--{argument.names[0]}"
                raise UsageError(
                    f"{one.name or 'inv'}: {name}: expected a value, found nothing; is a variable of yours unset?"
                )


def patch_parser() -> None:
    """Give Invoke's parser the words of this module. It makes its machine by a name of its module."""
    parser.ParseMachine = PatchedParser  # type: ignore[misc]


class PatchedParser(parser.ParseMachine):
    """Invoke's parser, with two differences: a task's name ends a flag whose value may be left out, and its errors
    name the task and the word that is nearest."""

    def handle(self, token: str) -> None:
        flag = self.flag
        if flag is not None and flag.optional and flag.raw_value is None and token in self.contexts:
            self.complete_flag()  # as if the flag stood at the end of the line: without a value
        elif self._is_unknown(token):
            self._refuse(token)
        super().handle(token)

    def complete_flag(self) -> None:
        flag = self.flag
        if flag is not None and flag.takes_value and flag.raw_value is None and not flag.optional:
            raise ParseError(f"{self._task}--{flag.names[0]}: expected a value after it")
        super().complete_flag()

    def switch_to_flag(self, flag: str, inverse: bool = False) -> None:
        super().switch_to_flag(flag, inverse)
        now = self.flag
        if now is not None and now.takes_value and now.kind is not list and now.raw_value is not None:
            raise ParseError(f"{self._task}--{now.names[0]}: given twice; give it once")

    def see_value(self, value: Any) -> None:
        try:
            super().see_value(value)
        except ValueError:
            name = self.flag.names[0] if self.flag else ""
            raise ParseError(f"{self._task}--{name}: expected a whole number, found {value!r}") from None

    def complete_context(self) -> None:
        missing = self.context.missing_positional_args if self.context else []
        if missing:
            names = " and ".join(str(one.name).upper() for one in missing)
            raise ParseError(f"{self._task}expected {names}; `inv --help {self.context.name}` explains")
        super().complete_context()

    def _is_unknown(self, token: str) -> bool:
        if self.ignore_unknown or self.waiting_for_flag_value or not self.context:
            return False
        flags = (one for of in (self.context, self.initial) for one in (of.flags, of.inverse_flags))
        return not self.context.missing_positional_args and not any(token in known for known in (self.contexts, *flags))

    def _refuse(self, token: str) -> None:
        if not token.startswith("-"):
            raise ParseError(f"{token}: no such task{suggest(token, self.contexts)}")
        flags = [flag for flag in self.context.flags if len(token) > 2 or flag.startswith(f"-{token}")]
        advice = f"`inv --help {self.context.name}` shows all flags" if self.context.name else "`inv --help` shows all"
        raise ParseError(f"{self._task}{token}: no such flag{suggest(token, flags, advice)}")

    @property
    def _task(self) -> str:
        return f"{self.context.name}: " if self.context and self.context.name else ""


# Its metaclass gives each class states of its own, none where the class body names none.
PatchedParser._class_states = parser.ParseMachine._class_states
PatchedParser._class_transitions = parser.ParseMachine._class_transitions
