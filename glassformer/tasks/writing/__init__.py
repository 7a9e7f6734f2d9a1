"""What people do with a model that writes: translate, summarise, mend, and go on with text.

Each takes a bundle and texts. A list gives a list; an iterator gives an iterator that reads no further ahead
than good batches need, so that a file of any length passes through. Results come in the order of the texts,
as strings, or with `details` as a `Passage` each: text, score, tokens, seconds; with `tree` also how each was
found, token by token. Further words are settings with Hugging Face's names (`GenerationConfig`); the folder's
generation_config.json holds where nothing is given. `batch_tokens` is how many tokens, read and written, a
batch holds.
"""

from glassformer.tasks.writing.batches import Passage
from glassformer.tasks.writing.continuing import generate, stream
from glassformer.tasks.writing.rewriting import restore, summarize, translate
from glassformer.tasks.writing.streaming import Stream

__all__ = ["Passage", "Stream", "generate", "restore", "stream", "summarize", "translate"]
