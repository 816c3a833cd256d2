"""Process of the fake cluster: `python -m tests.support.kubernetes`, controlled by JSON lines on standard input.

The first input line is the configuration, the first output line {"port": ...}. Every further input line is a call,
{"call": name, "positional": [...], "arguments": {...}}, and gets one output line: {"result": ...} or {"error": text}.
When standard input ends, so do the process and every pod.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from pathlib import Path

from tests.support.kubernetes.fake_cluster import FakeCluster


async def _serve(output: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    configuration = json.loads(await reader.readline())

    def write_line(**fields: object) -> None:
        os.write(output, json.dumps(fields).encode() + b"\n")

    state = Path(configuration.pop("state"))
    async with FakeCluster(state, configuration) as cluster:
        write_line(port=cluster.server.port)
        while line := await reader.readline():
            request = json.loads(line)
            try:
                result = await cluster.call(request["call"], request["positional"], request["arguments"])
            except Exception as error:  # noqa: BLE001 (the test receives every error)
                write_line(error=f"{type(error).__name__}: {error}")
            else:
                write_line(result=result)
    # `Cluster` removes the folder too, unless its process was killed.
    shutil.rmtree(state, ignore_errors=True)


def main() -> None:
    output = os.dup(1)
    os.dup2(2, 1)  # keep stray prints out of the protocol
    # Interrupted tests stop their servers by closing standard input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(_serve(output))


if __name__ == "__main__":
    main()
