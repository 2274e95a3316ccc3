"""The two arms of a comparison: each a git revision of this checkout, or a folder of a checkout."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lanecheck.errors import BadInput, CannotRun
from lanecheck.git import git

PREFIX = "lanecheck-"
"""Of the folders that worktrees lie in."""
HELD = "held"
"""A file beside a worktree, locked by whoever uses it."""


@dataclass(frozen=True)
class Arm:
    """
    Attributes:
        given: what the user named.
        commit: of a revision; None for a folder, which may hold anything.
        folder: which Python imports the arm's kernel from.
    """

    given: str
    commit: str | None
    folder: Path


@contextmanager
def checked_out(base: str, head: str, root: Path, reference: str) -> Iterator[tuple[Arm, Arm]]:
    """Both arms on disk. Revisions lie in worktrees of their own, which are gone afterwards.

    Args:
        base: a folder if there is such a path, or else a revision. head: another.
        root: this checkout.
        reference: the subject, ``module:ATTRIBUTE``, whose package lies in the checkout.

    Raises:
        BadInput: if an arm is neither, or has no such package.
    """
    with ExitStack() as stack:
        checkouts = [stack.enter_context(_checkout(given, root)) for given in (base, head)]
        kernel = _home(reference, root)
        for given, (_, folder) in zip((base, head), checkouts):
            if not (folder / kernel).is_dir():
                raise BadInput(
                    f"{given} has no folder {kernel}, where this checkout has its kernel"
                )
        (first, second) = (
            Arm(given, commit, folder / kernel)
            for given, (commit, folder) in zip((base, head), checkouts)
        )
        yield first, second


def _home(reference: str, root: Path) -> Path:
    """The folder that the subject's package is imported from, as seen from the checkout."""
    top = reference.partition(":")[0].partition(".")[0]
    if "" not in sys.path:
        sys.path.append("")  # as lanecheck.subject.load does
    try:
        found = importlib.util.find_spec(top)
    except ValueError:
        found = None
    if found is None or found.origin is None:
        raise BadInput(f"cannot find '{top}', the package of subject '{reference}'")
    origin = Path(found.origin).resolve()
    folder = origin.parents[1] if found.submodule_search_locations else origin.parent
    if not folder.is_relative_to(root.resolve()):
        raise BadInput(
            f"'{top}' is installed in {folder}, outside the checkout {root}: only a kernel of the "
            "checkout has revisions (pip install -e)"
        )
    return folder.relative_to(root.resolve())


@contextmanager
def _checkout(given: str, root: Path) -> Iterator[tuple[str | None, Path]]:
    """The commit and the folder of an arm."""
    path = Path(given)
    if path.exists():
        if not path.is_dir():
            raise BadInput(f"{given} is a file: name a git revision, or a folder of a checkout")
        yield None, path.resolve()
        return
    commit = git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}"
    )
    if commit is None:
        raise BadInput(f"{given} is neither a folder nor a git revision of {root}")
    prefix = git(root, "rev-parse", "--show-prefix") or ""
    _prune(root)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as temporary, _held(Path(temporary)):
        folder = Path(temporary) / commit[:12]
        try:
            if git(root, "worktree", "add", "--detach", str(folder), commit) is None:
                raise CannotRun(f"git worktree add fails for {given} ({commit[:12]})")
            yield commit, folder / prefix
        finally:
            git(root, "worktree", "remove", "--force", str(folder))


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Lock a folder of a worktree for as long as this process lives.

    Raises:
        OSError: if another process has.
    """
    with (temporary / HELD).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _prune(root: Path) -> None:
    """Take away the worktrees of comparisons that were killed."""
    for line in (git(root, "worktree", "list", "--porcelain") or "").splitlines():
        temporary = Path(line.removeprefix("worktree ")).parent
        if temporary.name.startswith(PREFIX) and (temporary / HELD).is_file():
            with suppress(OSError), _held(temporary):
                shutil.rmtree(temporary)
    git(root, "worktree", "prune")
