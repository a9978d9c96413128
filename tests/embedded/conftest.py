"""A plan that no other cluster on this machine shares."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from toolkit.plan.embedded import EmbeddedPlan
from toolkit.testing.embedded_plan import embedded_plan


@pytest.fixture
def make_plan() -> Callable[..., EmbeddedPlan]:
    return embedded_plan
