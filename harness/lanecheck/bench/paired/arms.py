"""The arms of a comparison: base and head, each a git revision of this checkout or a folder of a checkout;
and base again, a second checkout, by which the control asks whether the procedure tells it from the first."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lanecheck.build import LEFTOVERS
from lanecheck.errors import BadInput, CannotRun
from lanecheck.git import git
from lanecheck.subject import file_of

PREFIX = "lanecheck-"
"""Of the folders that checkouts lie in."""
HELD = "held"
"""A file beside a checkout, locked by whoever uses it."""


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
def checked_out(base: str, head: str, root: Path, reference: str) -> Iterator[tuple[Arm, Arm, Arm]]:
    """Base, head and base again, on disk. Revisions lie in worktrees of their own, of a folder there are
    copies: whoever edits it meanwhile changes no arm. All that is gone afterwards.

    Args:
        base: a folder if there is such a path, or else a revision. head: another.
        root: this checkout.
        reference: the subject, ``module:ATTRIBUTE``, whose package lies in the checkout.

    Raises:
        BadInput: if an arm is neither, or has no such package.
        CannotRun: if a worktree or the copy cannot be made.
    """
    _sweep(root)
    with ExitStack() as stack:
        commits = {given: _commit(given, root) for given in (base, head)}
        kernel = _home(reference, root)

        def arm(given: str) -> Arm:
            commit = commits[given]
            made = _worktree(commit, root) if commit else _copy(Path(given).resolve(), kernel)
            folder = stack.enter_context(made) / kernel
            if not folder.is_dir():
                raise BadInput(
                    f"{given} has no folder {kernel}, where this checkout has its kernel"
                )
            return Arm(given, commit, folder)

        yield arm(base), arm(head), arm(base)


def _home(reference: str, root: Path) -> Path:
    """The folder that the subject's package is imported from, as seen from the checkout; of a file, the
    current one, as its path is seen from there."""
    if file := file_of(reference):
        here, checkout = Path.cwd(), root.resolve()
        given = Path(reference.rpartition(":")[0])
        if given.is_absolute() or not (file.is_relative_to(here) and here.is_relative_to(checkout)):
            raise BadInput(
                f"'{reference}': only a file of the checkout {root}, named by its path from here, "
                "has revisions"
            )
        return here.relative_to(checkout)
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
            f"'{top}' is imported from {folder}, which no revision of the checkout {root} changes: "
            "pip install -e the checkout's own"
        )
    return folder.relative_to(root.resolve())


def _commit(given: str, root: Path) -> str | None:
    """Of a revision; None of a folder.

    Raises:
        BadInput: if it is neither.
    """
    path = Path(given)
    if path.exists():
        if not path.is_dir():
            raise BadInput(f"{given} is a file: name a git revision, or a folder of a checkout")
        return None
    commit = git(
        root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{given}^{{commit}}"
    )
    if commit is None:
        raise BadInput(f"{given} is neither a folder nor a git revision of {root}")
    return commit


@contextmanager
def _worktree(commit: str, root: Path) -> Iterator[Path]:
    """The folder that is ``root`` in a new worktree of a commit."""
    prefix = git(root, "rev-parse", "--show-prefix") or ""
    with _temporary() as temporary:
        folder = temporary / commit[:12]
        try:
            if git(root, "worktree", "add", "--detach", str(folder), commit) is None:
                raise CannotRun(f"git worktree add fails for {commit[:12]}")
            yield folder / prefix
        finally:
            git(root, "worktree", "remove", "--force", str(folder))


@contextmanager
def _copy(folder: Path, kernel: Path) -> Iterator[Path]:
    """A copy of a checkout's folder, links as links, without what tools leave there; outside of ``kernel``
    also without the folders that git ignores."""
    with _temporary() as temporary:
        arms = temporary.resolve().parent.glob(f"{PREFIX}*")  # which may lie in the folder
        skipped = {*_ignored(folder, kernel), *arms}

        def left_out(place: str, names: list[str]) -> set[str]:
            here = (name for name in names if Path(place, name) in skipped)
            return {*LEFTOVERS(place, names), *here}

        copy = temporary / folder.name
        try:
            shutil.copytree(folder, copy, symlinks=True, ignore=left_out)
        except shutil.Error as error:
            name, _, reason = error.args[0][0]
            raise CannotRun(f"cannot copy {name}, which an arm needs: {reason}") from None
        _relink(copy, folder)
        yield copy


def _ignored(folder: Path, kernel: Path) -> set[Path]:
    """The folders below a checkout's that git ignores, without those that ``kernel`` lies in or that lie in
    it; none if it is no git checkout."""
    asked = ("--others", "--ignored", "--exclude-standard", "--directory")
    said = git(folder, "-c", "core.quotePath=true", "ls-files", *asked) or ""
    found = {Path(name) for name in said.splitlines() if name.endswith("/")}
    return {
        folder / each
        for each in found
        if not (each.is_relative_to(kernel) or kernel.is_relative_to(each))
    }


def _relink(copy: Path, folder: Path) -> None:
    """Let a copy's relative links to what lies outside of the folder still lead there."""
    for place, folders, files in os.walk(copy):
        for link in (Path(place, name) for name in (*folders, *files)):
            if link.is_symlink() and not os.path.isabs(to := os.readlink(link)):
                target = Path(os.path.normpath(folder / link.relative_to(copy).parent / to))
                if not target.is_relative_to(folder):
                    link.unlink()
                    link.symlink_to(target)


@contextmanager
def _temporary() -> Iterator[Path]:
    """A folder that no other comparison takes away as long as this process lives."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, _held(Path(name)):
        yield Path(name)


@contextmanager
def _held(temporary: Path) -> Iterator[None]:
    """Lock the folder of a checkout for as long as this process lives.

    Raises:
        OSError: if another process has.
    """
    with (temporary / HELD).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _sweep(root: Path) -> None:
    """Take away the checkouts of comparisons that were killed."""
    lines = (git(root, "worktree", "list", "--porcelain") or "").splitlines()
    worktrees = [Path(line.removeprefix("worktree ")).parent for line in lines]
    for temporary in {*worktrees, *Path(tempfile.gettempdir()).glob(PREFIX + "*")}:
        with suppress(OSError):
            if temporary.name.startswith(PREFIX) and (temporary / HELD).is_file():
                with _held(temporary):
                    shutil.rmtree(temporary)
    git(root, "worktree", "prune")
