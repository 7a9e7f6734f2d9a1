"""HTTP server: OpenAI routes, task routes, and the explorer. Needs the extra `glassformer[serve]`.

A request passes `security` (token, host, origin), `limits` (queue, time, size) and then a route.
"""

import os

from glassformer.errors import UnsupportedError

KEY_VARIABLE = "GLASSFORMER_API_KEY"
_FORMER_KEY_VARIABLE = "GLASSFORMER_TOKEN"  # of version 0.2.0


def check_key_variables() -> None:
    """Raise if only the former variable of the API key is set: the server would be open."""
    if _FORMER_KEY_VARIABLE in os.environ and not os.environ.get(KEY_VARIABLE):
        raise UnsupportedError("serve", _FORMER_KEY_VARIABLE, hint=f"set {KEY_VARIABLE} instead")
