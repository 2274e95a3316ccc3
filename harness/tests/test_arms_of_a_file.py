"""A comparison of a subject in a file: the file is looked for in each arm as it is seen from here."""

from __future__ import annotations

import pytest

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
