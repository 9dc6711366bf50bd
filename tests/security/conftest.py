"""The homes of the fuzzer are used here too."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "fuzz"))
