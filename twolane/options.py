"""Options: dataclass fields that command-line flags and topology files set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(default: Any, help: str, *, name: str = "", **facts: Any) -> Any:
    """A dataclass field that is an option; `facts` are further fields of `Option`."""
    its = Option(name=name, help=help, **facts)
    return field(default=default, repr=not its.is_secret, metadata={"option": its})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option that users set: its name, help text and allowed values. `twolane.deploy.cli.flags`
    makes a flag of it and `twolane.deploy.spec.topology` a key of a file; both are called `name`.

    `usual` is its default in a cluster; the field's own default is for use as a library.
    """

    name: str  # "": the field's name
    help: str
    usual: Any = None  # None: the field's default
    stands_for: Any = None  # what a default of None means, for help and display
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    multiple_of: int | None = None
    flag: str = ""  # "": `name` with dashes
    metavar: str | None = None  # of the value, in a help text
    is_secret: bool = False  # never shown in logs or status
    is_live: bool = False  # may change while the cluster runs: `twolane config set`

    def wanted_instead_of(self, value: Any) -> str:
        """What the value must be, for an error message; empty if `value` is allowed."""
        if self.choices and value not in self.choices:
            return " or ".join((", ".join(self.choices[:-1]), self.choices[-1]))
        if self.multiple_of and (value < self.multiple_of or value % self.multiple_of):
            return f"a multiple of {self.multiple_of}"
        if self.least is not None and not self.least <= value <= (self.most or value):
            return f"{self.least} to {self.most}" if self.most else f"at least {self.least}"
        return ""
