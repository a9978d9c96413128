"""The benchmark client: follows a schedule against a router and writes a row for each request.

Points run one after another, the conversations of a point up to `concurrency` at a time.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time

from toolkit.bench.chat import ChatClient, Reply
from toolkit.bench.row_file import RowFile
from toolkit.bench.script import Scale, assistant, measure_scale, user, write_script
from toolkit.bench.text import words
from toolkit.errors import ToolkitError
from toolkit.plan.row import Row
from toolkit.plan.sweep import Conversation, Point, Schedule

# Long enough for whole blocks to be read back in its second turn, short enough to cost nothing.
WARM_UP_TOKENS = 512


class Sweeper:
    """One run of the client over one schedule."""

    def __init__(self, schedule: Schedule, chat: ChatClient, rows: RowFile) -> None:
        self._schedule = schedule
        self._chat = chat
        self._rows = rows
        self._slots = asyncio.Semaphore(schedule.concurrency)
        self._failed = 0

    async def run(self) -> bool:
        """Whether every request succeeded. Raises ToolkitError if it cannot begin."""
        todo = [point for point in map(self._unfinished, self._schedule.points) if point.conversations]
        if not todo:
            return True
        scale = await measure_scale(self._chat.count_tokens)
        await self._warm_up(scale)
        for point in todo:
            # Sized before the pause: tokenizing would compete with the requests that are timed.
            scripts = [
                (each, await write_script(each, self._schedule, scale, self._chat.count_tokens))
                for each in point.conversations
            ]
            await asyncio.sleep(self._schedule.settle_s)
            async with asyncio.TaskGroup() as tasks:
                for conversation, texts in scripts:
                    tasks.create_task(self._hold(conversation, texts))
        # The job that follows may stop the engines: their last lines come first.
        await asyncio.sleep(self._schedule.settle_s)
        return self._failed == 0

    def _unfinished(self, point: Point) -> Point:
        left = tuple(each for each in point.conversations if each.id not in self._rows.complete)
        return dataclasses.replace(point, conversations=left)

    async def _warm_up(self, scale: Scale) -> None:
        """A conversation of no row: lazy starts and the legs' handshakes stay out of the figures."""
        shortest = self._schedule.points[0].prompt_length
        size = scale.count(min(WARM_UP_TOKENS, shortest // 2))
        messages = [user(words(-1, 1, size))]
        try:
            for turn in (1, 2):
                reply = await self._chat.ask(self._wire_id("warm-up"), messages)
                say(f"warm-up turn {turn}: {reply.path or 'no X-KV-Path'}, {reply.ttft_ms:.0f} ms")
                messages += [
                    assistant(reply.text),
                    user(words(-1, 2, scale.count(self._schedule.turn_tokens))),
                ]
        except Exception as error:
            raise ToolkitError(
                f"the warm-up request failed: {self._chat.describe(error)}",
                next_step="read the logs of router and engines with `toolkit job logs`",
            ) from error

    async def _hold(self, conversation: Conversation, texts: list[str]) -> None:
        async with self._slots:
            messages = []
            for turn, text in enumerate(texts, start=1):
                messages.append(user(text))
                started_at = time.time()
                try:
                    reply = await self._chat.ask(self._wire_id(conversation.id), messages)
                # Whatever ends a request is this row's result; the verdict names it.
                except Exception as error:
                    failed_ms = (time.time() - started_at) * 1000
                    self._note(self._row(conversation, turn, started_at, Reply(total_ms=failed_ms), error))
                    return
                self._note(self._row(conversation, turn, started_at, reply))
                messages.append(assistant(reply.text))

    def _wire_id(self, conversation: str) -> str:
        """Fresh each attempt: a router may still hold the handle of an attempt that died."""
        return f"{self._schedule.leg}-{conversation}-{self._rows.attempt}"

    def _row(
        self, of: Conversation, turn: int, started_at: float, reply: Reply, error: Exception | None = None
    ) -> Row:
        return Row(
            leg=self._schedule.leg,
            prompt_length=of.prompt_length,
            conversation=of.id,
            turn=turn,
            prompt_tokens=reply.prompt_tokens,
            output_tokens=reply.output_tokens,
            ttft_ms=round(reply.ttft_ms, 3),
            total_ms=round(reply.total_ms, 3),
            prefill_ms=reply.prefill_ms,
            path=reply.path,
            kv_read_tokens=reply.kv_read_tokens,
            output_digest="" if error else reply.digest,
            first_token=reply.tokens[0] if reply.tokens else None,
            first_logprob=reply.first_logprob,
            first_top=reply.first_top,
            started_at=started_at,
            error=self._chat.describe(error) if error else None,
        )

    def _note(self, row: Row) -> None:
        self._rows.append(row)
        self._failed += row.error is not None
        read = f", {row.kv_read_tokens} read back" if row.kv_read_tokens else ""
        said = row.error or f"{row.path}, {row.prompt_tokens} tokens{read}, TTFT {row.ttft_ms:.0f} ms"
        say(f"{row.leg} {row.conversation} turn {row.turn}/{self._schedule.turns}: {said}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


async def run(schedule: Schedule, router: str, rows: RowFile) -> bool:
    """Follows `schedule` at `router` (http://host:port); whether every request succeeded."""
    chat = ChatClient(router, schedule.model, schedule.output_tokens)
    try:
        return await Sweeper(schedule, chat, rows).run()
    finally:
        await chat.close()
