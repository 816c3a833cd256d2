"""Rendered commands in a real shell."""

import json
import subprocess
import sys
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote.hosts.command import Command

# A shell argument can be any text that POSIX allows: no NUL, and only Unicode.
argument_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


ECHO = (sys.executable, "-I", "-S", "-c", "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd()]))")


@settings(max_examples=60, deadline=None)
@given(arguments=st.lists(argument_texts, max_size=4))
@example(
    arguments=["", " ", "it's", '"', "a\nb", "$HOME `id` \\", "*", "~", "-n", "日本語", "\r\t\x1b", "!!", "a=b;c&d|e>f"]
)
def test_any_text_survives_a_real_shell(arguments: list[str]) -> None:
    line = Command(argv=(*ECHO, *arguments)).render()
    output = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    assert json.loads(output)[0] == arguments


@settings(max_examples=20, deadline=None)
@given(value=argument_texts)
def test_any_environment_value_survives_a_real_shell(value: str) -> None:
    argv = (sys.executable, "-I", "-S", "-c", "import os, json; print(json.dumps(os.environ['GREETING']))")
    line = Command(argv=argv, environment={"GREETING": value}).render()
    output = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    assert json.loads(output) == value


def test_a_folder_of_any_name_is_entered_first(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $HOME\nof sorts"
    folder.mkdir()
    line = Command(argv=ECHO, folder=str(folder)).render()
    output = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    assert json.loads(output)[1] == str(folder)
