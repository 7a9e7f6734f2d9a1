"""One object per task: `preprocess -> model -> postprocess`, used by API, CLI, server and explorer.

See `glassformer.tasks.base` for the common base class.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.tasks.base import Callbacks, RejectedInputError, Task
    from glassformer.tasks.chat import ChatGenerator
    from glassformer.tasks.classification import Classification, Classifier, Label
    from glassformer.tasks.detection import Detector
    from glassformer.tasks.embedding import Embedder, Match, SimilaritySearch
    from glassformer.tasks.fill_mask import FilledText, MaskFiller
    from glassformer.tasks.forecasting import Forecast, Forecaster
    from glassformer.tasks.image_segmentation import ImageSegmenter
    from glassformer.tasks.question_answering import Answer, QuestionAnswerer
    from glassformer.tasks.segmentation import MaskGeneration, Prompt, PromptSegmenter
    from glassformer.tasks.series_classification import SeriesClassifier
    from glassformer.tasks.streaming import TextStream
    from glassformer.tasks.text_generation import GeneratedText, TextGenerator
    from glassformer.tasks.token_classification import Entity, TokenClassifier
    from glassformer.tasks.translation import Restorer, Summarizer, Translator
    from glassformer.tasks.zero_shot import ZeroShotClassifier

# imported on first use, so that translating does not import the code of other tasks
_MODULE_OF = {
    **dict.fromkeys(("Callbacks", "RejectedInputError", "Task"), "base"),
    **dict.fromkeys(("ChatGenerator",), "chat"),
    **dict.fromkeys(("Classification", "Classifier", "Label"), "classification"),
    **dict.fromkeys(("Detector",), "detection"),
    **dict.fromkeys(("Embedder", "Match", "SimilaritySearch"), "embedding"),
    **dict.fromkeys(("FilledText", "MaskFiller"), "fill_mask"),
    **dict.fromkeys(("Forecast", "Forecaster"), "forecasting"),
    **dict.fromkeys(("ImageSegmenter",), "image_segmentation"),
    **dict.fromkeys(("Answer", "QuestionAnswerer"), "question_answering"),
    **dict.fromkeys(("MaskGeneration", "Prompt", "PromptSegmenter"), "segmentation"),
    **dict.fromkeys(("SeriesClassifier",), "series_classification"),
    **dict.fromkeys(("TextStream",), "streaming"),
    **dict.fromkeys(("GeneratedText", "TextGenerator"), "text_generation"),
    **dict.fromkeys(("Entity", "TokenClassifier"), "token_classification"),
    **dict.fromkeys(("Restorer", "Summarizer", "Translator"), "translation"),
    **dict.fromkeys(("ZeroShotClassifier",), "zero_shot"),
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'glassformer.tasks' has no attribute '{name}'")
    return getattr(import_module(f"glassformer.tasks.{_MODULE_OF[name]}"), name)
