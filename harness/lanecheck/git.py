"""What git says of a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(root: Path, *words: str) -> str | None:
    """What a git command prints in ``root``, stripped; None if it fails, or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
