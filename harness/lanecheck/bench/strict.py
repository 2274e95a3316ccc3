"""What everything that is recorded has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A record: of its own fields alone, each of its own type, and never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
