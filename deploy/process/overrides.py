"""Options that were not given leave the default of the component that enforces them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

ConfigT = TypeVar("ConfigT")


def with_given(config: ConfigT, **changes: Any) -> ConfigT:
    """`config` with those changes that are not None."""
    given = {name: value for name, value in changes.items() if value is not None}
    changed: ConfigT = replace(config, **given)  # type: ignore[type-var]
    return changed
