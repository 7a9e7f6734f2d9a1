"""One input on its way through one model: all that can be shown of it, not how it is shown."""
