"""What the tests share: modules beside them, examples that are the same every time, and the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import settings

from lanecheck import cli

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("lanecheck", derandomize=True, database=None, deadline=None)
settings.load_profile("lanecheck")


@pytest.fixture
def lanecheck(monkeypatch, capsys):
    """Runs the command line in this process: exit code, standard output, standard error."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lanecheck", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, *capsys.readouterr()

    return run
