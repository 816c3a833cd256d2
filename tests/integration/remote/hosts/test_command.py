"""Rendered commands in a real shell."""

import json
import subprocess
import sys
import tempfile

from hypothesis import example, given, settings
from hypothesis import strategies as st

from remote.hosts.command import Command

# A shell argument can be any text that POSIX allows: no NUL, and only Unicode.
texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
ECHO = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['GREETING'], os.getcwd()]))"
ODD = ["", " ", "it's", '"', "a\nb", "$HOME `id` \\", "*", "~", "-n", "日本語", "\r\t\x1b", "!!", "a=b;c&d|e>f"]


@settings(max_examples=40, deadline=None)
@given(arguments=st.lists(texts, max_size=4), value=texts)
@example(arguments=ODD, value="\n".join(ODD))
def test_any_text_survives_a_real_shell(arguments: list[str], value: str) -> None:
    with tempfile.TemporaryDirectory(suffix="it's a $HOME\nof sorts") as folder:
        argv = (sys.executable, "-I", "-S", "-c", ECHO, *arguments)
        line = Command(argv=argv, environment={"GREETING": value}, folder=folder).render()
        output = subprocess.run(["sh", "-c", line], capture_output=True, check=True).stdout
    assert json.loads(output) == [arguments, value, folder]
