"""What a bench compared, for whoever started it."""

import json
import os
from pathlib import Path


def report(**counts: int) -> None:
    """Write the counts to the file that the environment names RESULT, if it does."""
    if path := os.environ.get("RESULT"):
        Path(path).write_text(json.dumps(counts))
