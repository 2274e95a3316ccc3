"""The oracles as the page shows them: read from their own modules, so that it cannot say otherwise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from lanecheck import oracles
from lanecheck.reports.model import CampaignRecord

_SEES, _CANNOT = "Sees: ", "Cannot see: "


@dataclass(frozen=True)
class Rung:
    """One oracle.

    Attributes:
        summary: what it demands. sees, cannot: what it notices and what it does not.
        paragraphs: its derivation: ``("text", str)`` or ``("list", [str, …])``.
        every: it judges one case in so many.
        verdicts, failures: on the healthy kernel, in the campaigns given.
    """

    name: str
    summary: str
    sees: str
    cannot: str
    paragraphs: list[tuple[str, str | list[str]]]
    every: int
    verdicts: int
    failures: int


def rungs(campaigns: Iterable[CampaignRecord]) -> list[Rung]:
    """Every oracle in the order of the ladder."""
    runs = list(campaigns)
    return [rung(module, runs) for module in oracles.LADDER]


def rung(module: ModuleType, campaigns: list[CampaignRecord]) -> Rung:
    """One oracle's page section, from its docstring.

    Raises:
        ValueError: if the docstring does not say what the oracle sees and what it cannot see.
    """
    first, *rest = (inspect.getdoc(module) or "").split("\n\n")
    name = module.NAME
    special = {}
    paragraphs: list[tuple[str, str | list[str]]] = []
    for paragraph in rest:
        text = " ".join(paragraph.split())
        if start := next((word for word in (_SEES, _CANNOT) if text.startswith(word)), None):
            special[start] = _plain(text.removeprefix(start))
        elif text.startswith("- "):
            items = re.split(r"^- ", paragraph, flags=re.MULTILINE)[1:]
            paragraphs.append(("list", [_plain(" ".join(item.split())) for item in items]))
        else:
            paragraphs.append(("text", _plain(text)))
    if len(special) < 2:
        raise ValueError(f"the docstring of oracle {name} lacks 'Sees:' or 'Cannot see:'")
    summary = " ".join(first.split()).partition(": ")[2]
    return Rung(
        name=name,
        summary=_plain(summary[:1].upper() + summary[1:]),
        sees=special[_SEES],
        cannot=special[_CANNOT],
        paragraphs=paragraphs,
        every=getattr(module, "EVERY", 1),
        verdicts=sum(campaign.judged.get(name, 0) for campaign in campaigns),
        failures=sum(note.oracle == name for each in campaigns for note in each.failures),
    )


def _plain(text: str) -> str:
    """Without the markup of docstrings."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", text)
    return text.replace("``", "").replace("*", "")
