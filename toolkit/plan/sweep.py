"""What a sweep will ask: its points, conversations and row count. Pure; the client follows it as written.

The schedules of both legs hold the same conversations, so that their rows can be compared one by one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from toolkit.errors import SettingsError
from toolkit.settings.deployment import Deployment

SweepLeg = Literal["off", "on"]


@dataclass(frozen=True)
class Conversation:
    """`id` is stable over legs and attempts (`4096-0`); `seed` decides every word the client says."""

    id: str
    prompt_length: int
    seed: int


@dataclass(frozen=True)
class Point:
    """One prompt length: the target prompt tokens of each conversation's last turn."""

    prompt_length: int
    conversations: tuple[Conversation, ...]


@dataclass(frozen=True)
class Schedule:
    """schedule.json. `settle_s`: pause between points, so that the engines' log lines of one point
    (one each stats interval) are written before the next point starts."""

    leg: SweepLeg
    model: str  # the served name
    turns: int
    output_tokens: int
    turn_tokens: int
    concurrency: int
    settle_s: float
    points: tuple[Point, ...]

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return tuple(conversation for point in self.points for conversation in point.conversations)

    @property
    def expected_rows(self) -> int:
        return len(self.conversations) * self.turns

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "expected_rows": self.expected_rows}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Schedule:
        """Raises SettingsError if `text` is not a schedule of this toolkit."""
        try:
            data = json.loads(text)
            expected = data.pop("expected_rows")
            schedule = cls(**{**data, "points": tuple(_point(point) for point in data["points"])})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _not_a_schedule(f"{type(error).__name__}: {error}") from error
        if schedule.leg not in get_args(SweepLeg):
            raise _not_a_schedule(f"leg {schedule.leg!r} is neither off nor on")
        if schedule.expected_rows != expected:
            raise _not_a_schedule(f"it says {expected} rows but holds {schedule.expected_rows}")
        return schedule


def plan_sweep(settings: Deployment, leg: SweepLeg) -> Schedule:
    """The schedule of one leg of `settings.sweep`."""
    sweep = settings.sweep
    return Schedule(
        leg=leg,
        model=settings.model.served_name,
        turns=sweep.turns,
        output_tokens=sweep.output_tokens,
        turn_tokens=sweep.turn_tokens,
        concurrency=sweep.concurrency,
        settle_s=2 * settings.kv.stats_interval + 1,
        points=tuple(
            Point(
                length,
                tuple(
                    # Seeds never meet: repeats of a length and lengths of a sweep are all different.
                    Conversation(f"{length}-{i}", length, (sweep.seed << 40) + (length << 16) + i)
                    for i in range(sweep.repeats)
                ),
            )
            for length in sweep.prompt_lengths
        ),
    )


def _point(data: dict[str, Any]) -> Point:
    return Point(data["prompt_length"], tuple(Conversation(**each) for each in data["conversations"]))


def _not_a_schedule(why: str) -> SettingsError:
    return SettingsError(f"not a sweep schedule: {why}", next_step="write it again with `toolkit sweep run`")
