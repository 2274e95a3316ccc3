"""``python -m lanecheck``."""

from lanecheck.cli import main

main()
