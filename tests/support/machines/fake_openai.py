"""Fake vLLM server with OpenAI's protocol and fixed answers.

    with FakeOpenAI(answers={"Hello": "Hi"}, key="secret") as server:   # server.url
        server.requests                                                 # the requests' bodies, in order

The answer to a prompt that is not in `answers` is `?`. `reason` is the finish_reason of every answer. `broken` replaces
every response: (status, body, headers). Not covered: streaming, several choices, a model.
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.support.machines.http_stubs import StubHandler, StubServer


class FakeOpenAI(StubServer):
    def __init__(
        self, answers: Mapping[str, str], *, key: str | None = None, models: tuple[str, ...] = ("tuned",),
        broken: tuple[int, bytes, dict[str, str]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(_Handler)
        self.url = f"http://{self.host}"
        self.answers, self.key, self.models, self.reason, self.broken = answers, key, models, "stop", broken
        self.requests: list[dict[str, Any]] = []


class _Handler(StubHandler):
    server: FakeOpenAI

    def do_GET(self) -> None:
        self.send_json({"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.models]})

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(document)
        prompt = document["messages"][-1]["content"] if "messages" in document else document["prompt"]
        text = self.server.answers.get(prompt, "?")
        is_chat = self.path == "/v1/chat/completions"
        content = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        self.send_json({"choices": [{"index": 0, "finish_reason": self.server.reason, **content}]})

    def send_json(self, document: dict[str, Any]) -> None:
        status, body, headers = 200, json.dumps(document).encode(), {"Content-Type": "application/json"}
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            status, body = 401, b'{"error": "Unauthorized"}'
        elif self.server.broken is not None:
            status, body, headers = self.server.broken
        self.reply(status, body, headers)
