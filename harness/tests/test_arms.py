"""What is compared: revisions and folders, and a second checkout of base."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from test_compare import GIT, REFERENCE, change, checkout, git, worktrees

from lanecheck.bench.paired.arms import HELD, PREFIX, checked_out
from lanecheck.build import tree
from lanecheck.errors import BadInput, CannotRun

__all__ = ["checkout"]  # a fixture


@GIT
def test_a_revision_lies_in_a_worktree_that_is_gone_afterwards(checkout):
    change(checkout)
    for error in (None, KeyboardInterrupt, CannotRun):
        with (
            suppress(KeyboardInterrupt, CannotRun),
            checked_out("HEAD", ".", checkout, REFERENCE) as (base, head, _),
        ):
            assert base.commit == git(checkout, "rev-parse", "HEAD").strip()
            assert head.commit is None
            assert not head.folder.is_relative_to(checkout)
            texts = [(arm.folder / "small_gemv" / "subject.py").read_text() for arm in (base, head)]
            assert ["bool(0)" in text for text in texts] == [False, True]
            assert git(checkout, "worktree", "list").count("\n") == 3
            if error:
                raise error
        assert not base.folder.exists()
        assert worktrees(checkout) == 1


@GIT
def test_a_path_that_exists_wins(checkout):
    (checkout / "HEAD").mkdir()
    with (
        pytest.raises(BadInput, match="HEAD has no folder kernel"),
        checked_out("HEAD", ".", checkout, REFERENCE),
    ):
        pass


@GIT
@pytest.mark.parametrize(
    ("base", "reference", "message"),
    [
        ("nope", REFERENCE, "nope is neither a folder nor a git revision of"),
        ("--all", REFERENCE, "--all is neither a folder nor a git revision of"),
        ("matrix.yaml", REFERENCE, "matrix.yaml is a file: name a git revision, or a folder"),
        ("HEAD", "lanecheck.template:SUBJECT", "which no revision of the checkout"),
        ("HEAD", "nope:SUBJECT", "cannot find 'nope'"),
    ],
)
def test_what_is_no_arm_is_refused(base, reference, message, checkout):
    with pytest.raises(BadInput, match=message), checked_out(base, ".", checkout, reference):
        pass
    assert worktrees(checkout) == 1


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@GIT
def test_base_is_checked_out_twice(checkout):
    change(checkout)
    with checked_out("HEAD", ".", checkout, REFERENCE) as (base, head, again):
        assert len({base.folder, head.folder, again.folder}) == 3
        assert (again.given, again.commit) == (base.given, base.commit)
        assert names(again.folder) == names(base.folder) == {
            "small_gemv/__init__.py", "small_gemv/subject.py",
        }  # fmt: skip
        text = (again.folder / "small_gemv" / "subject.py").read_text()
        assert "SPOILT = False" in text
    assert worktrees(checkout) == 1


@GIT
def test_of_a_folder_every_arm_is_a_copy_without_what_tools_leave_there(checkout):
    change(checkout)
    kernel = checkout / "kernel"
    left = [".git", ".nox", ".venv", ".lanecheck", ".ruff_cache", "__pycache__", "k.egg-info"]
    for name in left:
        (kernel / "small_gemv" / name).mkdir()
        (kernel / "small_gemv" / name / "some").write_text("")
    (kernel / "small_gemv" / "data").symlink_to("nowhere")
    for error in (None, KeyboardInterrupt):
        with (
            suppress(KeyboardInterrupt),
            checked_out(".", "HEAD", checkout, REFERENCE) as (base, _, again),
        ):
            assert base.commit is None and again.commit is None
            assert base.folder != again.folder
            for folder in (base.folder, again.folder):
                assert not folder.is_relative_to(checkout)
                assert names(folder) == {"small_gemv/__init__.py", "small_gemv/subject.py"}
                assert "bool(0)" in (folder / "small_gemv" / "subject.py").read_text()
            if error:
                raise error
        assert not again.folder.exists() and not base.folder.exists() and kernel.exists()
    assert worktrees(checkout) == 1


@GIT
def test_an_edit_meanwhile_changes_no_arm(checkout):
    with checked_out("HEAD", ".", checkout, REFERENCE) as arms:
        before = [(arm.folder / "small_gemv" / "subject.py").read_text() for arm in arms]
        change(checkout)
        after = [(arm.folder / "small_gemv" / "subject.py").read_text() for arm in arms]
    assert before == after


def put(place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("")
    return place


@GIT
@pytest.mark.parametrize("tracked", [True, False])
def test_the_whole_checkout_is_copied_but_for_folders_that_git_ignores(tracked, checkout):
    """What lies in the kernel's folder all is, and everything where git knows nothing of it."""
    (checkout / ".gitignore").write_text("build/\n*.gen.h\n")
    for name in ("csrc/small.cu", "csrc/small.gen.h", "kernel/build/new.py", "build/big", "new/a"):
        put(checkout / name)
    if not tracked:
        (checkout / ".git").rename(checkout.parent / "git")
    with checked_out(str(checkout), str(checkout), checkout, REFERENCE) as (base, _, again):
        copy = again.folder.parent
        assert again.folder == copy / "kernel"
        assert names(checkout) - names(copy) == (
            {each for each in names(checkout) if each.startswith(".git/")}
            | ({"build/big"} if tracked else set())
        )
        assert names(base.folder) == names(again.folder)


@GIT
def test_in_a_copy_links_lead_where_they_led(checkout):
    put(checkout.parent / "outside" / "data")
    put(checkout / "csrc" / "small.cu")
    package = checkout / "kernel" / "small_gemv"
    links = {
        "csrc": "../../csrc",
        "outside": "../../../outside",
        "absolute": str(checkout.parent / "outside"),
        "loop": ".",
        "nowhere": "nothing",
    }
    for name, to in links.items():
        (package / name).symlink_to(to)
    with checked_out(".", ".", checkout, REFERENCE) as (_, _, again):
        copied = again.folder / "small_gemv"
        assert {name: os.readlink(copied / name) for name in links} == {
            **links, "outside": links["absolute"],
        }  # fmt: skip
        assert (copied / "csrc" / "small.cu").is_file() and (copied / "outside" / "data").is_file()
        assert tree(copied) == tree(package)


@GIT
def test_a_copy_that_lies_in_what_is_copied_is_not_copied(checkout, monkeypatch):
    (checkout / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(checkout / "tmp"))
    with checked_out(".", ".", checkout, REFERENCE) as (base, _, again):
        assert names(again.folder.parent / "tmp") == set()
        assert names(again.folder) == names(base.folder)


@GIT
def test_a_copy_that_a_killed_comparison_left_is_taken_away_by_the_next(checkout):
    with checked_out(".", ".", checkout, REFERENCE) as (_, _, held):
        left = checkout.parent / f"{PREFIX}killed"
        (left / "kernel").mkdir(parents=True)
        (left / HELD).write_text("")
        foreign = checkout.parent / f"{PREFIX}of-another-kind"
        foreign.mkdir()
        with checked_out(".", ".", checkout, REFERENCE):
            assert not left.exists() and held.folder.is_dir() and foreign.is_dir()
        foreign.rmdir()


@GIT
def test_a_folder_that_cannot_be_copied_is_said(checkout):
    pipe = checkout / "kernel" / "small_gemv" / "pipe"
    os.mkfifo(pipe)
    message = f"cannot copy {pipe}, which an arm needs: .*is a named pipe"
    with pytest.raises(CannotRun, match=message), checked_out(".", ".", checkout, REFERENCE):
        pass
    assert worktrees(checkout) == 1
