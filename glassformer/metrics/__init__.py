"""How good a model is: figures added up over batches and divided once, so that batching changes nothing."""
