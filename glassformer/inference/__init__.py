"""The same numbers sooner: a model's layers with their weights laid out for the machine that runs them."""
