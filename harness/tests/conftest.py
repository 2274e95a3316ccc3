"""What the tests share: modules beside them are importable, and examples are the same every time."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("lanecheck", derandomize=True, database=None, deadline=None)
settings.load_profile("lanecheck")
