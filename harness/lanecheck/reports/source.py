"""What a report judged: the commit, the kernel's own files, and how they are compiled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from lanecheck.bench.strict import Strict
from lanecheck.build import Recipe, tree
from lanecheck.git import git


class SourceRecord(Strict):
    """What was checked: the commit, whether the tree differed from it, and the kernel's own files.

    Attributes:
        git_sha, dirty: None outside a git checkout, and of a source that is no part of it.
        sha256: of the names and contents of every file of the kernel's source folder.
        recipe_sha256: of the commands that compile them, for a GPU and for the host; None in older records.
    """

    git_sha: str | None
    dirty: bool | None
    sha256: str
    recipe_sha256: str | None = None

    @property
    def commit(self) -> str:
        """Short, with a + for local changes."""
        if self.git_sha is None:
            return "unknown"
        return self.git_sha[:12] + ("+" if self.dirty else "")

    def differs(self, other: SourceRecord) -> bool:
        """Whether what was shown of one says nothing of the other: another source, or compiled otherwise,
        where both records say how."""
        recipes = {self.recipe_sha256, other.recipe_sha256} - {None}
        return self.sha256 != other.sha256 or len(recipes) > 1


def source_record(root: Path, recipe: Recipe) -> SourceRecord:
    """The commit of ``root``, unknown outside a git checkout and where the source is :func:`elsewhere`, and
    the digests of a kernel's source."""
    sha = None if elsewhere(root, recipe) else git(root, "rev-parse", "HEAD")
    changes = git(root, "status", "--porcelain")
    return SourceRecord(
        git_sha=sha,
        dirty=None if sha is None or changes is None else bool(changes),
        sha256=_digest(tree(recipe.root)),
        recipe_sha256=_digest(_commands(recipe)),
    )


def elsewhere(root: Path, recipe: Recipe) -> bool:
    """Whether a kernel's source is no part of the git checkout at ``root``, like that of an installed copy:
    then its commit says nothing of it."""
    listed = ["ls-files", "--cached", "--others", "--exclude-standard", "--"]
    held = git(root, *listed, str(recipe.root.resolve()))
    return not held and git(root, "rev-parse", "HEAD") is not None


def _commands(recipe: Recipe) -> list[list[str]]:
    """The recipe's commands, alike on every machine and for every arch and host variant."""
    source, out = recipe.root.resolve(), Path("{out}")
    commands = [
        recipe.device(Path("{nvcc}"), ["{gencode}"], source, out),
        recipe.host(Path("{cxx}"), ["{flags}"], [Path("{include}")], source, out),
    ]
    return [
        [word.replace(str(source), "{source}").replace(str(recipe.root), "{root}") for word in each]
        for each in commands
    ]


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
