"""Lines of a data file that cannot be used: all are named at once, or few of them are left out."""

from dataclasses import dataclass, field

from bench.data.inputs import InputError
from bench.records.training_data import MAX_SKIPPED_SHARE

MAX_LISTED = 20
MAX_REASON_CHARS = 160


@dataclass(kw_only=True)
class BadLines:
    """Unusable lines of `source`: their number and the errors of the first `MAX_LISTED`.

    `policy`: "refuse" raises an error that lists them, "skip" leaves them out if they are few.
    """

    source: str
    policy: str = "refuse"
    count: int = 0
    errors: list[InputError] = field(default_factory=list)

    def add(self, error: InputError, *, lines: int | None = None) -> None:
        """Add the error of a line; `lines` is the number of all lines, if it is known.

        Raises InputError once the list is full or no more lines may be left out.
        """
        self.count += 1
        if len(self.errors) < MAX_LISTED:
            self.errors.append(error)
        if self.policy == "refuse" and self.count == MAX_LISTED:
            raise self._error(f"at least {MAX_LISTED}")
        if lines is not None:
            self.check(lines, is_final=False)

    def check(self, lines: int, *, is_final: bool = True) -> None:
        """Raise InputError if these lines, of `lines` in all, may not be left out."""
        if self.policy == "refuse" and self.count and is_final:
            raise self.errors[0] if self.count == 1 else self._error(str(self.count))
        if self.policy == "skip" and self.count > int(lines * MAX_SKIPPED_SHARE):
            raise self._error(f"{self.count} of {lines}" if is_final else f"more than {self.count - 1} of {lines}")

    def places(self) -> list[str]:
        """Return a line for each listed error: file, line and reason."""
        return [str(error).partition("; ")[0] for error in self.errors]

    def _error(self, count: str) -> InputError:
        prefix = f"{self.source}: "
        reasons = [text.removeprefix(prefix)[:MAX_REASON_CHARS] for text in self.places()[:MAX_LISTED]]
        share = f"{MAX_SKIPPED_SHARE:.0%}".replace("%", " %")
        remedy = f"or set train.bad_lines: skip, which leaves out at most {share} of the lines"
        if self.policy == "skip":
            remedy = f"because train.bad_lines: skip leaves out at most {share} of the lines"
        listed = " | ".join(reasons)
        return InputError(f"{prefix}{count} lines cannot be used: {listed}; correct or remove them, {remedy}")
