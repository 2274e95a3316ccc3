"""A comparison of a subject in a file: the file is looked for in each arm as it is seen from here."""

from __future__ import annotations

import pytest
from test_compare import GIT, SUBJECT, git

from lanecheck.bench.paired import arms
from lanecheck.errors import BadInput


@pytest.mark.parametrize(
    ("here", "reference"), [("", "mine.py:S"), ("", "sub/mine.py:S"), ("sub", "mine.py:S")]
)
def test_an_arm_s_folder_is_the_current_one(here, reference, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / here)
    assert str(arms._home(reference, tmp_path)) == (here or ".")


@pytest.mark.parametrize("reference", ["/elsewhere/mine.py:S", "../mine.py:S"])
def test_a_file_that_an_arm_would_not_see_is_refused(reference, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(
        BadInput, match="only a file of the checkout .*, named by its path from here"
    ):
        arms._home(reference, tmp_path)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Somebody's repository without a matrix, the current folder; the kernel's launch imports a helper."""
    root = tmp_path / "own"
    root.mkdir()
    helped = SUBJECT.replace("    def launch(self", "    def launch(self, *given):\n        "
        "from helper import launched\n        return launched(self._launch, *given)\n\n"
        "    def _launch(self")  # fmt: skip
    (root / "mine.py").write_text(helped)
    (root / "helper.py").write_text("def launched(launch, *given):\n    return launch(*given)\n")
    (root / ".gitignore").write_text(".lanecheck/\n__pycache__/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a kernel")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(root)
    return root


@GIT
def test_a_repository_without_a_matrix_is_compared_and_what_a_launch_imports_is_code(
    own, lanecheck
):
    words = ("compare", "HEAD", ".", "--device", "host", "--subject", "mine.py:SUBJECT", "--plan")
    code, said, complaint = lanecheck(*words)
    assert (code, complaint) == (0, "") and "the verdict is SAME" in said
    (own / "helper.py").write_text("def launched(launch, *given):\n    launch(*given)\n")
    code, said, _ = lanecheck(*words)
    assert code == 0 and "base and head differ in helper.py" in said


@GIT
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("mine.py:NONE", "base (HEAD): "),
        ("none.py:SUBJECT", "base (HEAD): subject 'none.py:SUBJECT': there is no file none.py"),
        ("mine.py", "'mine.py' is not of the form module:ATTRIBUTE or FILE.py:ATTRIBUTE"),
    ],
)
def test_a_subject_that_is_not_there_is_bad_input(reference, message, own, lanecheck):
    words = ("compare", "HEAD", ".", "--device", "host", "--subject", reference)
    code, _, complaint = lanecheck(*words)
    assert code == 2 and message in complaint and len(complaint.splitlines()) == 1
