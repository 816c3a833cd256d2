"""A server that speaks OpenAI's protocol as vLLM does, with answers that a test gives it.

    with StandIn(answers={"Hello": "Hi"}, key="secret") as server:      # server.url
        server.asked                                                    # what came, in order

A prompt that is not in `answers` is answered with `?`. `reason` is the finish_reason of every answer. `broken` is sent
instead of every answer: (status, body, headers). Not covered: streaming, several choices, a model.
"""

import json
from collections.abc import Mapping
from typing import Any

from tests.support.machines.http_stubs import Answering, Serving


class StandIn(Serving):
    def __init__(
        self, answers: Mapping[str, str], *, key: str | None = None, models: tuple[str, ...] = ("tuned",),
        broken: tuple[int, bytes, dict[str, str]] | None = None, address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:  # fmt: skip
        super().__init__(_Handler, address)
        self.url = f"http://{self.host}"
        self.answers, self.key, self.models, self.reason, self.broken = answers, key, models, "stop", broken
        self.asked: list[dict[str, Any]] = []

    def answer(self, document: Mapping[str, Any]) -> tuple[str, str]:
        """The text for what was asked, and why it ends there."""
        prompt = document["messages"][-1]["content"] if "messages" in document else document["prompt"]
        return self.answers.get(prompt, "?"), self.reason


class _Handler(Answering):
    server: StandIn

    def do_GET(self) -> None:
        self.say({"object": "list", "data": [{"id": name, "object": "model"} for name in self.server.models]})

    def do_POST(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(document)
        text, reason = self.server.answer(document)
        is_chat = self.path == "/v1/chat/completions"
        said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
        self.say({"choices": [{"index": 0, "finish_reason": reason, **said}]})

    def say(self, document: dict[str, Any]) -> None:
        status, body, headers = 200, json.dumps(document).encode(), {"Content-Type": "application/json"}
        if self.path == "/health":
            body = b""
        elif self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            status, body = 401, b'{"error": "Unauthorized"}'
        elif self.server.broken is not None:
            status, body, headers = self.server.broken
        self.reply(status, body, headers)
