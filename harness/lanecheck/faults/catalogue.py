"""The fault catalogue: deliberate defects as data, one YAML file each.

A fault says what it models, where it applies (a syntax-tree rule, so that a refactoring does not
strand it), what it writes there, and which oracles are expected to notice. The kernel's source stays
clean; injecting a fault gives an overlay of changed files. A fault that no longer applies is an error.

A control is an entry of the same form for a change that must not be called wrong.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Literal

import yaml
from ast_grep_py import SgNode, SgRoot
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lanecheck import oracles
from lanecheck.errors import BadInput


class Rewrite(BaseModel):
    """Replace what an ast-grep rule matches; ``$NAME`` in ``fix`` stands for what it matched."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: dict[str, Any]
    fix: str
    count: int = Field(default=1, ge=1)


class Fault(BaseModel):
    """One catalogue entry.

    Attributes:
        id: its name, that of its file. title: one line. models: what it stands for.
        report: a public report of the kind; for a control, of a false alarm or of such a change.
        kind: what goes wrong: which ``operand`` is read, the ``arithmetic``, an access to ``memory``, the
            ``launch``; a ``race``, which a GPU may never show, while host execution always can; or ``asm``,
            in code that host execution replaces, so that only a GPU can.
        file: the source file, below the recipe's root.
        rewrites: all are found in the healthy source before any is applied.
        variants: the host builds it is run under; none if it is in ``asm``.
        effort: how many times the ordinary number of cases it takes, if few of them can show it.
        caught_by: the oracles expected to notice.
        expect: ``killed``, or of a control that every case passes, or is reordered at worst and some are.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str
    models: str
    report: str
    kind: Literal["operand", "arithmetic", "memory", "launch", "race", "asm"]
    file: str
    rewrites: list[Rewrite] = Field(min_length=1)
    variants: list[Literal["plain", "hooks", "asan"]]
    effort: int = Field(default=1, ge=1)
    caught_by: list[str] = []
    expect: Literal["killed", "reordered", "pass"] = "killed"

    @property
    def control(self) -> bool:
        """Whether this is a change that must not be flagged."""
        return self.expect != "killed"

    @model_validator(mode="after")
    def _is_caught_by_somebody(self) -> Fault:
        if self.control == bool(self.caught_by):
            raise ValueError("caught_by names who notices a fault, and nobody for a control")
        return self

    @model_validator(mode="after")
    def _runs_somewhere(self) -> Fault:
        if (self.kind == "asm") == bool(self.variants):
            raise ValueError("variants names the host builds to run under, and none for kind asm")
        return self

    def inject(self, root: Path) -> dict[str, str]:
        """The faulty text of each changed file, by its path below ``root``.

        Raises:
            BadInput: if the fault no longer applies: its file is gone, a rewrite matches another
                number of places than it says or the same place as another, or nothing changes.
        """
        try:
            text = (root / self.file).read_text(encoding="utf-8")
        except OSError as error:
            raise self._stale(f"there is no {self.file} in {root}") from error
        tree = SgRoot(text, "cpp").root()
        edits = [edit for rewrite in self.rewrites for edit in self._edits(tree, rewrite)]
        edits.sort(key=lambda edit: edit.start_pos)
        for one, other in itertools.pairwise(edits):
            if other.start_pos < one.end_pos:
                raise self._stale(f"two of its rewrites change the same place in {self.file}")
        faulty = tree.commit_edits(edits)
        if faulty == text:
            raise self._stale(f"it leaves {self.file} as it is")
        return {self.file: faulty}

    def _stale(self, reason: str) -> BadInput:
        return BadInput(f"fault {self.id} no longer applies: {reason}; bring the fault up to date")

    def _edits(self, tree: SgNode, rewrite: Rewrite) -> list[Any]:
        try:
            found = tree.find_all({"rule": rewrite.rule})
        except Exception as error:  # ast-grep has no type of its own
            reason = " ".join(str(error).partition("Stack backtrace")[0].split())
            raise BadInput(f"fault {self.id}: {rewrite.rule} is no rule: {reason}") from error
        if len(found) != rewrite.count:
            raise self._stale(
                f"its rule {rewrite.rule} matches {len(found)} places in {self.file}, "
                f"not {rewrite.count}"
            )
        return [node.replace(self._expanded(rewrite.fix, node)) for node in found]

    def _expanded(self, fix: str, node: SgNode) -> str:
        def captured(name: re.Match[str]) -> str:
            match = node.get_match(name[1])
            if match is None:
                raise BadInput(f"fault {self.id}: its rule captures no {name[0]} for '{fix}'")
            return str(match.text())

        indented = fix.replace("\n", "\n" + " " * node.range().start.column)
        return re.sub(r"\$([A-Z_][A-Z0-9_]*)", captured, indented)


def load(folder: Path) -> list[Fault]:
    """Every fault of a catalogue, by id.

    Raises:
        BadInput: naming the file that is not a fault, or an oracle that does not exist.
    """
    faults = [_read(path) for path in sorted(folder.glob("*.yaml"))]
    if not faults:
        raise BadInput(f"no faults in {folder}: expected one YAML file each")
    return faults


def find(folder: Path, fault_id: str) -> Fault:
    """The fault of this id.

    Raises:
        BadInput: if there is none; the message lists those there are.
    """
    faults = {fault.id: fault for fault in load(folder)}
    if fault_id not in faults:
        raise BadInput(f"no fault '{fault_id}'; known: {', '.join(faults)}")
    return faults[fault_id]


def _read(path: Path) -> Fault:
    try:
        fault = Fault.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        said = first["msg"].removeprefix("Value error, ")
        raise BadInput(f"{path.name}: {where}: {said}") from error
    except yaml.YAMLError as error:
        raise BadInput(f"{path.name}: not YAML: {error}".replace("\n", " ")) from error
    if fault.id != path.stem:
        raise BadInput(f"{path.name}: its id is '{fault.id}'; name the file after it")
    unknown = set(fault.caught_by) - set(oracles.NAMES)
    if unknown:
        raise BadInput(
            f"{path.name}: unknown oracle '{unknown.pop()}'; known: {', '.join(oracles.NAMES)}"
        )
    return fault
