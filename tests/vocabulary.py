"""Check of the project's language: `python -m tests.vocabulary` lists each violation and exits 1 if there is any.

The rules are those of docs/glossary.md: docstrings begin with a verb or a noun, names say what they hold, and neither
prose nor commit subjects use the phrases below. A justified exception carries `vocabulary: REASON` in a comment on its
line. `make check` runs this.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.support.paths import ROOT

FIRST_CHECKED = "f966d2eb9cfa"  # commits after this one are checked
MAX_SUBJECT = 72
ADVICE = "docs/glossary.md has the words; a justified exception carries `vocabulary: REASON` in a comment on its line"
EXEMPT = ("tests/vocabulary.py", "tests/unit/test_vocabulary.py", "docs/glossary.md", "LICENSE")

DOCSTRING = re.compile(r"(?:Of|As|What|Whether|How|Where|Who|When)\b")
PHRASES = {
    "negated noun": r"\b(?:is|are) none\b|\bthat none\b|(?<!\bthere )(?<!\bThere )\bis no (?!longer\b|more than\b)",
    "folk remedy": r"the same again|type the same|\bis meant\b|: look\b(?! at)|\bmends?\b",
    "proxy question": r"\bis a proxy between\b",
    "vague word": r"\b(?:beside|anew|nobody|somebody|whoever|nought|in vain|for ever|by itself|for nothing)\b"
    r"|(?<!-)\balone\b",
    "house metaphor": r"\bhouse\b(?!-)|\bimport circles?\b|\bcircles? of imports\b|\bfloors of\b",
}
HEADLESS_COMMENT = re.compile(r"#\s+(?:of|as of|whose|where)\s")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
LOCALS = frozenset({"one", "found", "place", "words", "there", "what", "said", "given"})
_PHRASES = {rule: re.compile(pattern) for rule, pattern in PHRASES.items()}


@dataclass(frozen=True, kw_only=True, order=True)
class Violation:
    """A place that breaks a rule. `line` is 0 for a commit."""

    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


RULES = ("docstring", *PHRASES, "headless comment", "vague local")


def check_file(path: str, text: str) -> list[Violation]:
    """Check one file's text; Python files are parsed too."""
    lines = text.splitlines()
    hits = [*_phrases(text, lines), *(_python(text) if path.endswith(".py") else ())]
    return sorted(
        Violation(path=path, line=line, rule=rule, text=match)
        for line, rule, match in hits
        if "vocabulary: " not in lines[line - 1]
    )


def _phrases(text: str, lines: Iterable[str]) -> Iterator[tuple[int, str, str]]:
    for rule, pattern in _PHRASES.items():
        if pattern.search(text):
            for number, line in enumerate(lines, 1):
                for match in pattern.finditer(line):
                    yield number, rule, match[0]


def _python(text: str) -> Iterator[tuple[int, str, str]]:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if node.id in LOCALS and isinstance(node.ctx, ast.Store):
                yield node.lineno, "vague local", node.id
        elif isinstance(node, ast.arg):
            if node.arg in LOCALS:
                yield node.lineno, "vague local", node.arg
        elif isinstance(node, DOCUMENTED):
            docstring = ast.get_docstring(node)
            if docstring and DOCSTRING.match(docstring):
                yield node.body[0].lineno, "docstring", docstring.partition("\n")[0][:60]
    if HEADLESS_COMMENT.search(text):
        yield from _comments(text)


def _comments(text: str) -> Iterator[tuple[int, str, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_trailing = token.type == tokenize.COMMENT and token.line[: token.start[1]].strip()
        if is_trailing and (match := HEADLESS_COMMENT.match(token.string)):
            yield token.start[0], "headless comment", match[0]


def check_subject(subject: str) -> str | None:
    """Return what is wrong with a commit's subject, or None."""
    if len(subject) > MAX_SUBJECT:
        return f"{len(subject)} characters, at most {MAX_SUBJECT}"
    return "a semicolon: two commits" if ";" in subject else None


def check_commits(first: str = FIRST_CHECKED) -> list[Violation]:
    """Check the subjects of the commits after `first`. A shallow clone without that commit has nothing to check."""
    log = _git("log", "--no-merges", "--format=%h %s", f"{first}..HEAD")
    return [
        Violation(path=f"commit {commit}", line=0, rule="commit subject", text=f"{reason}: {subject}")
        for commit, _, subject in (line.partition(" ") for line in (log or "").splitlines())
        if (reason := check_subject(subject))
    ]


def is_checked(path: str) -> bool:
    return path.endswith((".py", ".md", ".toml", ".yaml")) and path not in EXEMPT


def check_tree() -> list[Violation]:
    """Check every file that git tracks or would track."""
    listed = (_git("ls-files", "--cached", "--others", "--exclude-standard") or "").splitlines()
    paths = [path for path in listed if is_checked(path) and (ROOT / path).is_file()]
    return [violation for path in paths for violation in check_file(path, (ROOT / path).read_text(encoding="utf-8"))]


def _git(*arguments: str) -> str | None:
    """Run git; None if it fails, as for a commit that a shallow clone lacks."""
    completed = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return completed.stdout if completed.returncode == 0 else None


def main() -> int:
    violations = [*check_tree(), *check_commits()]
    for violation in violations:
        print(violation)
    if violations:
        print(f"{len(violations)} violations; {ADVICE}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
