"""Helpers of this folder are imported by their plain names, from other folders' tests too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
