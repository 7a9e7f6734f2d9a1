"""Why a request was not taken, or came to nothing."""

from __future__ import annotations

from glassformer.errors import GlassformerError


class Busy(GlassformerError):
    """As many requests are waiting as may."""


class Closed(GlassformerError):
    """The writer takes nothing more."""


class Cancelled(GlassformerError):
    """Whoever asked does not want it any more."""


class Failed(GlassformerError):
    """Nothing came of it."""


class Unsound(Failed):
    """What came of it are no numbers: the model overflowed, or the settings forbid every token."""
