"""Every error a user may see, and the exit code it ends with.

ToolkitError                 1  something failed; the message says what and what to do next
├── SettingsError            2  a setting, flag or file is wrong; nothing was started
├── JobFailed                3  a Slurm job or an engine ended badly
└── ResultsInvalid           4  it ran, but its results must not be used
"""

from __future__ import annotations


class ToolkitError(Exception):
    """A failure told in one paragraph: what happened to what, then the next step."""

    exit_code = 1

    def __init__(self, what: str, *, next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.next_step = next_step

    def __str__(self) -> str:
        return f"{self.what}\nNext: {self.next_step}" if self.next_step else self.what


class SettingsError(ToolkitError):
    exit_code = 2


class JobFailed(ToolkitError):
    exit_code = 3


class ResultsInvalid(ToolkitError):
    exit_code = 4
