"""Rules of the vocabulary check, each with text that breaks it and text that does not."""

import pytest

from tests import vocabulary

BROKEN = [
    ("docstring", '"""Of a line as it was read."""\n'),
    ("docstring", 'def f():\n    """Whether it runs."""\n'),
    ("docstring", 'class A:\n    """What a host is."""\n'),
    ("negated noun", "# a date that is none\n"),
    ("negated noun", "# run X is no training\n"),
    ("folk remedy", "message = 'wrong; the same again'\n"),
    ("folk remedy", "# it says what mends it\n"),
    ("proxy question", "# is a proxy between?\n"),
    ("vague word", "# built anew\n"),
    ("vague word", "# the standard library alone\n"),
    ("house metaphor", "# the house in numbers\n"),
    ("headless comment", "LIMIT = 5  # of a key's file\n"),
    ("vague local", "for one in range(3):\n    pass\n"),
    ("vague local", "def f(words): ...\n"),
    ("vague local", "f = lambda found: 0\n"),
]
FINE = [
    '"""Parse one line of the ledger."""\n',
    "# there is no GPU\n",
    "# it is no longer used\n",
    "# a stand-alone program\n",
    "# of a line of its own: not a trailing comment\n",
    "place_of_run, one_line = 1, 2\n",
    "for one in range(3):  # vocabulary: the loop only counts\n    pass\n",
    "import found\n",
    "print(found)\n",
]


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_text_that_breaks_a_rule(rule: str, text: str) -> None:
    assert [violation.rule for violation in vocabulary.check_file("bench/x.py", text)] == [rule]


@pytest.mark.parametrize("text", FINE)
def test_text_that_breaks_no_rule(text: str) -> None:
    assert vocabulary.check_file("bench/x.py", text) == []


def test_a_violation_names_path_line_rule_and_match() -> None:
    (violation,) = vocabulary.check_file("docs/a.md", "fine\n\nbuilt anew\n")
    assert str(violation) == "docs/a.md:3: vague word: anew"


def test_a_document_is_checked_for_phrases_alone() -> None:  # vocabulary: the test's subject
    assert vocabulary.check_file("docs/a.md", "one = found\n") == []


@pytest.mark.parametrize(
    ("subject", "is_fine"),
    [
        ("Exit 3 on a full disk in every command", True),
        ("x" * 72, True),
        ("x" * 73, False),
        ("Add a check; remove another", False),
    ],
)
def test_subjects_of_commits(subject: str, is_fine: bool) -> None:
    assert (vocabulary.check_subject(subject) is None) == is_fine


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert {rule for rule, _ in BROKEN} == set(vocabulary.RULES)
