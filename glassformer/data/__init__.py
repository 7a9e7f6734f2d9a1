"""Read training data, split it, store it as token ids, batch it and augment it."""

from glassformer.data.batches import Batch, Batches, DataPosition
from glassformer.data.randomness import Permutation
from glassformer.data.store import Store, write_store

__all__ = ["Batch", "Batches", "DataPosition", "Permutation", "Store", "write_store"]
