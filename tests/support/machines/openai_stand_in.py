"""A server that speaks OpenAI's protocol as vLLM does, with answers that a test gives it.

    with StandIn(answers={"Hello": "Hi"}, key="secret") as server:      # server.url
        server.asked                                                    # what came, in order

A prompt that is not in `answers` is answered with `otherwise`. `reason` is the finish_reason of every answer.
`broken` is sent instead of every answer: (status, body, headers). Not covered: streaming, several choices, a model.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

from tests.support.machines.answering import Answering, Serving


class StandIn:
    def __init__(
        self, answers: Mapping[str, str], *, key: str | None = None, models: tuple[str, ...] = ("tuned",),
        reason: str = "stop", otherwise: str = "?", broken: tuple[int, bytes, dict[str, str]] | None = None,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:  # fmt: skip
        self.answers, self.key, self.models = answers, key, models
        self.reason, self.otherwise, self.broken, self.address = reason, otherwise, broken, address
        self.asked: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        stand_in = self

        class Handler(Answering):
            def do_GET(self) -> None:
                self.say({"object": "list", "data": [{"id": name, "object": "model"} for name in stand_in.models]})

            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                stand_in.asked.append(document)
                text, reason = stand_in.answer(document)
                is_chat = self.path == "/v1/chat/completions"
                said = {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
                self.say({"choices": [{"index": 0, "finish_reason": reason, **said}]})

            def say(self, document: dict[str, Any]) -> None:
                status, body, headers = 200, json.dumps(document).encode(), {"Content-Type": "application/json"}
                if self.path == "/health":
                    body = b""
                elif stand_in.key is not None and self.headers.get("Authorization") != f"Bearer {stand_in.key}":
                    status, body = 401, b'{"error": "Unauthorized"}'
                elif stand_in.broken is not None:
                    status, body, headers = stand_in.broken
                self.reply(status, body, headers)

        self._server = Serving(Handler, self.address).__enter__()
        self.url = f"http://{self._server.host}"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)

    def answer(self, document: Mapping[str, Any]) -> tuple[str, str]:
        """The text for what was asked, and why it ends there."""
        prompt = document["messages"][-1]["content"] if "messages" in document else document["prompt"]
        return self.answers.get(prompt, self.otherwise), self.reason
