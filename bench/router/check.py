"""Before anything is measured: each router does to the requests what it is there for."""

from __future__ import annotations

from typing import Any

import orjson

from bench.router.bodies import MIX, variants
from bench.router.client import Door, LoadFailed, RouterClient, Tally
from bench.router.load import EXTRA_EVENTS, SATURATION_CHUNKS
from bench.router.messages import text
from bench.router.stub import Pair
from bench.router.targets import Router

SIZE = 4096
_NUMBER = 0
"""No conversation of the load has it."""


async def one_conversation(pair: Pair, router: Router) -> list[str]:
    """Sends one conversation, turn by turn, and looks at what engines and client got.

    Gives what a reader of the table should know.

    Raises:
        LoadFailed: the engines got other messages, or no handle on two legs, or the client another text.
    """
    pair.chunks, pair.seen = SATURATION_CHUNKS, []
    tally = Tally(SATURATION_CHUNKS + EXTRA_EVENTS)
    turns = variants(SIZE, MIX, SATURATION_CHUNKS)[0]
    answers = []
    for turn in turns:
        client = Keeping(router.door, await router.door.connect(), iter([((turn,), _NUMBER)]), tally)
        client.start()
        client.stop()
        await client.stopped
        tally.check()
        answers.append(client.answer)
    seen, pair.seen = pair.seen, None
    remarks = [remark for answer in answers if (remark := _client_got(router.door, answer))]
    decodes = [body for role, _, body in seen if role == "decode"]
    prefills = [body for role, _, body in seen if role == "prefill"]
    sent = [orjson.loads(b"".join(turn.of(_NUMBER))) for turn in turns]
    _engines_got(router.door, sent, prefills, decodes)
    changed = sorted(
        {name for body, asked in zip(decodes, sent, strict=True) for name in _changed(asked, body)}
    )
    if changed:
        remarks.append(f"{router.door.name} changes what clients ask of decode: {', '.join(changed)}")
    return list(dict.fromkeys(remarks))


class Keeping(RouterClient):
    """Keeps the answer that it counted."""

    answer = b""

    def _done(self, status: int, answer: bytes) -> None:
        self.answer = answer
        super()._done(status, answer)


def _client_got(door: Door, answer: bytes) -> str:
    """A remark, or nothing."""
    events = [orjson.loads(line[6:]) for line in answer.split(b"\n\n")[:-2]]
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])
    if said != text(SATURATION_CHUNKS):
        raise LoadFailed(f"{door.name}: the client got {said!r} instead of {text(SATURATION_CHUNKS)!r}")
    leaks = any(event.get("kv_transfer_params") for event in events)
    return f"{door.name} passes the KV handle on to clients" if leaks else ""


def _engines_got(
    door: Door, sent: list[dict[str, Any]], prefills: list[dict[str, Any]], decodes: list[dict[str, Any]]
) -> None:
    asked = [body["messages"] for body in sent]
    if [body["messages"] for body in decodes] != asked:
        raise LoadFailed(f"{door.name}: decode was not sent each turn's messages once and unchanged")
    if not prefills or any(body["messages"] not in asked for body in prefills):
        raise LoadFailed(f"{door.name}: prefill was sent other messages than the client's, or none")
    pulls = sum((body.get("kv_transfer_params") or {}).get("do_remote_prefill") is True for body in decodes)
    if pulls != len(prefills):
        raise LoadFailed(
            f"{door.name}: {len(prefills)} prefill legs, but decode was told to pull {pulls} times"
        )


def _changed(asked: dict[str, Any], got: dict[str, Any]) -> set[str]:
    """Members that differ; routers may add the transfer parameters, and what says nothing."""
    names = {name for name in asked if asked[name] != got.get(name)}
    return names | {name for name in got if name not in asked and name != "kv_transfer_params" and got[name]}
