"""The clients of the soak: conversations on all four endpoints, each answer compared with what must come."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from toolkit.testing import fake_answers
from toolkit.testing.fake_answers import CHAT, COMPLETIONS, MESSAGES, RESPONSES

HANG_S = 45.0
"""What a client has waited so long for does not come any more; no engine is frozen for as long."""
OPEN_ENDS = frozenset({429, 502, 503, 504})
"""What a router may say when engines die under it."""
TENANTS, MOST_TURNS = 4, 6
LEAVES, STORES, SPIES, NAMED, READS = 0.12, 0.1, 0.1, 0.3, 0.3
READ_BACK = "x-kv-path: readback\r\n"


def spell(prompt: bytes) -> list[str]:
    """The answer to a prompt: eight tokens of four digits."""
    digits = blake2b(prompt, digest_size=16).hexdigest()
    return [digits[place : place + 4] for place in range(0, 32, 4)]


@dataclass(frozen=True)
class Form:
    """How one endpoint answers: the text of a whole answer and of an event, and what ends a stream."""

    path: str
    whole: Callable[[Any], str]
    piece: Callable[[Any], str]
    last: bytes

    def read(self, stream: bool, raw: bytes) -> tuple[str, int | None, bool]:
        """Text so far, the status of an error event, and whether the end has come."""
        if not stream:
            return self.whole(json.loads(raw)), None, True
        text, error = "", None
        for event in raw.split(b"\n\n")[:-1]:
            data = event[event.index(b"data: ") + 6 :]
            if data == b"[DONE]":
                continue
            told = json.loads(data)
            if "error" in told:
                error = int(told.get("code") or told["error"].get("code") or 503)
            else:
                text += self.piece(told)
        return text, error, self.last in raw


def _of_type(kind: str, get: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda event: get(event) if event["type"] == kind else ""


FORMS = (
    Form(
        CHAT,
        lambda answer: str(answer["choices"][0]["message"]["content"]),
        lambda event: "".join(choice["delta"].get("content", "") for choice in event["choices"]),
        b"data: [DONE]",
    ),
    Form(
        COMPLETIONS,
        lambda answer: str(answer["choices"][0]["text"]),
        lambda event: "".join(choice["text"] for choice in event["choices"]),
        b"data: [DONE]",
    ),
    Form(
        RESPONSES,
        lambda answer: str(answer["output"][0]["content"][0]["text"]),
        _of_type("response.output_text.delta", lambda event: str(event["delta"])),
        b"event: response.completed",
    ),
    Form(
        MESSAGES,
        lambda answer: str(answer["content"][0]["text"]),
        _of_type("content_block_delta", lambda event: str(event["delta"]["text"])),
        b"event: message_stop",
    ),
)


@dataclass
class Talk:
    """A conversation of one tenant; `said` are the texts of user and assistant in turns."""

    form: Form
    tenant: int
    name: str | None
    stores: bool
    said: list[str] = field(default_factory=list)

    def body(self, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "tiny", "stream": stream, "max_tokens": 32}
        if self.name is not None:
            body["conversation_id"] = self.name
        if self.form.path == COMPLETIONS:
            return body | {"prompt": "\n".join(self.said)}
        roles = ("user", "assistant")
        history = [{"role": roles[place % 2], "content": text} for place, text in enumerate(self.said)]
        if self.form.path == RESPONSES:
            return body | {"input": history, "store": self.stores}
        return body | {"messages": history, "tools": [{"name": "f", "input_schema": {"type": "object"}}]}


@dataclass
class Answer:
    status: int
    path: str
    body: bytes


class Left(Exception):
    """The client has closed its connection; `so_far` came before."""

    def __init__(self, so_far: bytes = b"") -> None:
        super().__init__("left")
        self.so_far = so_far


class Line:
    """A kept connection to the router."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def close(self, *, at_once: bool = False) -> None:
        if self._writer is not None:
            self._writer.transport.abort() if at_once else self._writer.close()
        self._writer = None

    async def ask(
        self, path: str, key: str, body: dict[str, Any], extra: str, leave: Callable[[], int | None]
    ) -> Answer:
        """Raises Left where `leave` says so: 0 amid the request, 1 behind it, n at piece n - 1."""
        raw = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: soak\r\nauthorization: Bearer {key}\r\n{extra}"
            f"content-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        when = leave()
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        self._writer.write(head.encode() + (raw[: len(raw) // 2] if when == 0 else raw))
        if when in (0, 1):
            await asyncio.sleep(random.uniform(0, 0.05))
            raise Left
        status, headers = _head(await self._reader.readuntil(b"\r\n\r\n"))
        if "content-length" in headers:
            content = await self._reader.readexactly(int(headers["content-length"]))
        else:
            content = await self._chunks(self._reader, when)
        return Answer(status, headers.get("x-kv-path", "-"), content)

    async def _chunks(self, reader: asyncio.StreamReader, when: int | None) -> bytes:
        content, count = b"", 0
        while size := int(await reader.readline(), 16):
            content += (await reader.readexactly(size + 2))[:-2]
            count += 1
            if when is not None and count >= when - 1:
                raise Left(content)
        await reader.readexactly(2)
        return content


def _head(raw: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    return int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines)


@dataclass
class Tally:
    """What has happened; `faults` are what must not."""

    counts: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    """Right answers by endpoint and mode."""
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.counts["faults"] += 1
        if len(self.faults) < 20:
            self.faults.append(text[:600])
            print(f"FAULT: {text[:600]}", file=sys.stderr, flush=True)


class Client:
    """Holds one conversation after another."""

    def __init__(self, port: int, keys: Sequence[str], tally: Tally, source: random.Random) -> None:
        self._line, self._keys, self._tally, self._source = Line(port), keys, tally, source

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            await self.converse(self._source.choice(FORMS), LEAVES)
        self.close()

    def close(self) -> None:
        self._line.close()

    async def converse(self, form: Form, leaves: float) -> None:
        """Some turns; ends early where one fails or the client leaves."""
        source = self._source
        name = secrets.token_hex(8) if source.random() < NAMED else None
        talk = Talk(form, source.randrange(TENANTS), name, source.random() < STORES)
        for _ in range(source.randint(1, MOST_TURNS)):
            size = source.choice((120, 1200, 6000))
            talk.said.append(f"{secrets.token_hex(8)} " + "tell me more, please. " * (size // 22))
            stream = source.random() < 0.6
            body = talk.body(stream)
            said = await self.turn(talk, body, leaves, READ_BACK if source.random() < READS else "")
            if said is None:
                # Half of the users try the same again, after a moment.
                await asyncio.sleep(source.uniform(0.05, 0.5))
                said = await self.turn(talk, body, leaves) if source.random() < 0.5 else None
            if said is None:
                return
            talk.said.append(said)
            await asyncio.sleep(source.uniform(0, 0.03))
        if source.random() < SPIES:
            await self._spy(talk)

    async def _spy(self, talk: Talk) -> None:
        """Another tenant sends the same conversation and asks for its blocks."""
        talk.tenant = (talk.tenant + 1) % TENANTS
        said = await self.turn(talk, talk.body(False), 0, READ_BACK, spying=True)
        self._tally.counts["spies"] += said is not None

    async def turn(
        self, talk: Talk, body: dict[str, Any], leaves: float, extra: str = "", *, spying: bool = False
    ) -> str | None:
        """What was answered, where it was answered right."""
        source, counts, form = self._source, self._tally.counts, talk.form
        expected = "".join(spell(fake_answers.render(form.path, body)))
        stream = bool(body["stream"])
        about = f"{form.path} {'stream' if stream else 'whole'}"
        counts["requests"] += 1

        def leave() -> int | None:
            return source.randint(0, 9 if stream else 1) if source.random() < leaves else None

        try:
            async with asyncio.timeout(HANG_S):
                answer = await self._line.ask(form.path, self._keys[talk.tenant], body, extra, leave)
        except Left as left:
            self._line.close(at_once=source.random() < 0.5)
            counts["left"] += 1
            text = form.read(True, left.so_far)[0] if left.so_far.startswith((b"data", b"event")) else ""
            if not expected.startswith(text):
                self._tally.fault(f"{about}: began with {text!r} instead of {expected!r}")
            return None
        except TimeoutError:
            self._line.close()
            self._tally.fault(f"{about}: no end within {HANG_S:.0f} s")
            return None
        except (OSError, EOFError) as error:
            self._line.close()
            self._tally.fault(f"{about}: the connection was cut without a word: {error!r}")
            return None
        return self._judged(about, form, stream, expected, answer, spying=spying)

    def _judged(
        self, about: str, form: Form, stream: bool, expected: str, answer: Answer, *, spying: bool
    ) -> str | None:
        tally, shown = self._tally, f"{answer.status} {answer.body[:200]!r}"
        if b"kv_transfer_params" in answer.body or b"pd_lease" in answer.body:
            tally.fault(f"{about}: KV metadata in the answer: {shown}")
        if answer.status != 200:
            tally.counts[f"ended openly: status {answer.status}"] += 1
            if answer.status not in OPEN_ENDS:
                tally.fault(f"{about}: {shown}")
            return None
        text, error, ended = form.read(stream, answer.body)
        if error is not None:
            tally.counts["ended openly: error event"] += 1
            if error not in OPEN_ENDS or not expected.startswith(text):
                tally.fault(f"{about}: error event {error} behind {text!r} instead of {expected!r}")
            return None
        if text != expected or not ended:
            tally.fault(f"{about}: {text!r} instead of {expected!r}, {'whole' if ended else 'cut'}")
            return None
        if spying and answer.path == "readback":
            tally.fault(f"{about}: a tenant read another one's blocks")
        tally.right[about] += 1
        tally.counts[f"path: {answer.path}"] += 1
        return text
