"""The server's process: `python -m tests.support.kubernetes`, told what to be and what to do by JSON lines on standard
input.

The first line in is the configuration, the first line out says where it listens. Every later line in is a call,
{"call": name, "arguments": {...}}, and has one line of answer: {"result": ...} or {"error": text}. When standard input
ends, so does the process, and with it every pod.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.support.kubernetes.fake_cluster import World


async def _serve(answers: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configuration = json.loads(await reader.readline())

    def say(**what: object) -> None:
        os.write(answers, json.dumps(what).encode() + b"\n")

    state = Path(configuration.pop("state"))
    async with World(state, configuration) as world:
        say(port=world.server.port)
        while line := await reader.readline():
            asked = json.loads(line)
            try:
                result = await world.call(asked["call"], asked["arguments"])
            except Exception as error:  # noqa: BLE001 (whatever it is, the test is to see it)
                say(error=f"{type(error).__name__}: {error}")
            else:
                say(result=result)
    # Whoever started this removes the folder too, unless it was killed.
    shutil.rmtree(state, ignore_errors=True)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)  # a stray print must not be taken for an answer
    # Tests that are interrupted take their servers down by closing standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_serve(answers))


if __name__ == "__main__":
    main()
