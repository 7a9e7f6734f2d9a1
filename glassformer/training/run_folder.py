"""The names by which a run's folder and its models are known, which whoever loads a model must know too."""

from glassformer.models.run_folder import BEST, MODEL, RECIPE, is_run, result_of

__all__ = ["BEST", "MODEL", "RECIPE", "is_run", "result_of"]
