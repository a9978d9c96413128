"""The connector's own modules judge the stub's handles."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "connector" / "src"))
