"""The one error a person sees: a sentence that says what is wrong, where, and how to put it right."""


class GlassformerError(ValueError):
    """Bad input, told in one sentence. The command line prints it and leaves with exit code 2."""
