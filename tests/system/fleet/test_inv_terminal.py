"""Commands that draw, on a pseudo-terminal: rich's sequences reach the terminal, none is printed as text."""

import re

import pytest

from tests.support.terminal import PseudoTerminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ESCAPED_SEQUENCE = re.compile(r"\\u00[01][0-9a-f]")
SEQUENCE = "\x1b["
CHAIN = ("bench", "--quick", "--only=baseline", "collect", "runs", "monitor")  # each draws a table or a live view


@pytest.mark.usefixtures("hold_file")
def test_no_command_prints_an_escaped_sequence_on_a_terminal(project) -> None:
    environment = {**project.environment, "TERM": "xterm-256color", "COLUMNS": "100", "INVOKE_FLEET_SIZE": "1"}
    terminal = PseudoTerminal(
        lambda **streams: project.server.start_inv(*CHAIN, cwd=project.folder, env=environment, **streams)
    )
    try:
        code = terminal.wait()
    finally:
        terminal.close()
    assert code == 0, terminal.output
    assert SEQUENCE in terminal.output, terminal.output
    assert not ESCAPED_SEQUENCE.search(terminal.output), terminal.output
