"""Commands that draw, on a pseudo-terminal: rich's sequences reach the terminal, none is printed as text."""

import re

import pytest

from tests.support.terminal import PseudoTerminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ESCAPED_SEQUENCE = re.compile(r"\\u00[01][0-9a-f]")
SEQUENCE = "\x1b["
# Commands in one chain, in the order of their use; each draws a table, a bar or a live view.
CHAINS = {
    "bench": ("bench", "--quick", "--only=baseline", "collect", "report", "runs"),
    "monitor": ("monitor",),
    "plans": ("bench", "--quick", "--dry-run", "train", "--dry-run", "data.check"),
    "second bench": ("bench", "--quick", "--only=baseline", "collect"),
    "compare": ("compare", "{first}", "{second}", "--allow=unknown"),
}


@pytest.mark.usefixtures("hold_file")
def test_no_command_prints_an_escaped_sequence_on_a_terminal(project) -> None:
    environment = {**project.environment, "TERM": "xterm-256color", "COLUMNS": "100", "INVOKE_FLEET_SIZE": "1"}
    runs: list[str] = []
    for name, chain in CHAINS.items():
        arguments = [word.format(first="".join(runs[:1]), second="".join(runs[-1:])) for word in chain]
        terminal = PseudoTerminal(
            lambda arguments=arguments, **streams: project.server.start_inv(
                *arguments, cwd=project.folder, env=environment, **streams
            )
        )
        try:
            code = terminal.wait()
        finally:
            terminal.close()
        runs.append(project.run_folder().name)
        # The second of two runs may be slower.
        assert code == 0 or (code == 1 and name == "compare"), (name, terminal.output)
        assert SEQUENCE in terminal.output, (name, terminal.output)
        assert not ESCAPED_SEQUENCE.search(terminal.output), (name, terminal.output)
