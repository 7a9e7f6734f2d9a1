"""One file per task, ending in its declaration; see `glassformer.tasks.registry`. None imports torch."""
