"""Examples on disk, in an order worked out rather than stored, cut into batches by a budget of tokens."""

from glassformer.data.batches import Batch, Batches, Place
from glassformer.data.order import Order
from glassformer.data.store import Store, write_store

__all__ = ["Batch", "Batches", "Order", "Place", "Store", "write_store"]
