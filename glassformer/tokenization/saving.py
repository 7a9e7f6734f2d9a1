"""The small files written beside a saved vocabulary."""

import json
from typing import Any

from glassformer.tokenization.declared import CONFIG, Declared


def companions(declared: Declared, settings: dict[str, Any]) -> dict[str, bytes]:
    """tokenizer_config.json and the files that came with the tokenizer, by name.

    Keys that stood in the original configuration stay as they were; `settings` fill in the rest.
    """
    config = {**settings, **declared.config}
    text = json.dumps(config, ensure_ascii=False, indent=2) + "\n"
    return {**declared.carried, CONFIG: text.encode("utf-8")}
