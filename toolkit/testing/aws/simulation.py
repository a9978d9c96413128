"""What the stand-in's server remembers besides moto's own state: the scenario and the calls it answered."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from toolkit.testing.aws.calls import Call
from toolkit.testing.aws.scenario import Scenario


@dataclass
class Simulation:
    scenario: Scenario = field(default_factory=Scenario)
    calls: list[Call] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def reset(self) -> None:
        self.scenario = Scenario()
        self.calls.clear()


# One for the process, since moto's own state is one for the process too.
simulation = Simulation()
