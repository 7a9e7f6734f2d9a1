"""The small files written beside a saved vocabulary."""

import json
from pathlib import Path
from typing import Any

from glassformer.text.declared import CONFIG, Declared


def write_companions(folder: Path, declared: Declared, settings: dict[str, Any]) -> None:
    """Write tokenizer_config.json and hand on the files that came with the tokenizer.

    Keys that stood in the original configuration stay as they were; `settings` fill in the rest.
    """
    config = {**settings, **declared.config}
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    for name, content in declared.carried.items():
        (folder / name).write_bytes(content)
