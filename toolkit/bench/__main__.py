"""`python -m toolkit.bench`: the client as a Slurm job on the router's node. Exit 0: every row is good."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from toolkit.bench.client import run, say
from toolkit.bench.row_file import RowFile
from toolkit.errors import ToolkitError
from toolkit.plan.sweep import Schedule


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m toolkit.bench", description=__doc__)
    parser.add_argument("--schedule", type=Path, required=True, help="schedule.json of this leg")
    parser.add_argument("--router", required=True, help="http://host:port")
    parser.add_argument("--rows", type=Path, required=True, help="rows.jsonl; good conversations are kept")
    options = parser.parse_args()
    try:
        schedule = Schedule.from_json(options.schedule.read_text(encoding="utf-8"))
        rows = RowFile(options.rows, schedule.turns)
        return 0 if asyncio.run(run(schedule, options.router, rows)) else 1
    except OSError as error:
        say(f"error: {error}")
        return 1
    except ToolkitError as error:
        say(f"error: {error}")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
