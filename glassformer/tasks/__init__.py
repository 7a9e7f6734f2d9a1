"""One object per task: `processor -> forward -> postprocess`, used by API, CLI, server and explorer.

See `glassformer.tasks.base` for the common base classes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.tasks.base import Callbacks as Callbacks
    from glassformer.tasks.base import RejectedInputError as RejectedInputError
    from glassformer.tasks.base import Task as Task
    from glassformer.tasks.chat import ChatGenerator as ChatGenerator
    from glassformer.tasks.classification import Classifier as Classifier
    from glassformer.tasks.declarations.answer import Answer as Answer
    from glassformer.tasks.declarations.ask import ImageAnswer as ImageAnswer
    from glassformer.tasks.declarations.ask import ScoredAnswer as ScoredAnswer
    from glassformer.tasks.declarations.classify import Classification as Classification
    from glassformer.tasks.declarations.classify import Label as Label
    from glassformer.tasks.declarations.fill import FilledText as FilledText
    from glassformer.tasks.declarations.ner import Entity as Entity
    from glassformer.tasks.declarations.similar import Match as Match
    from glassformer.tasks.detection import Detector as Detector
    from glassformer.tasks.embedding import Embedder as Embedder
    from glassformer.tasks.embedding import SimilaritySearch as SimilaritySearch
    from glassformer.tasks.fill_mask import MaskFiller as MaskFiller
    from glassformer.tasks.forecasting import Forecast as Forecast
    from glassformer.tasks.forecasting import Forecaster as Forecaster
    from glassformer.tasks.image_questions import AnswerChat as AnswerChat
    from glassformer.tasks.image_questions import AnswerClassifier as AnswerClassifier
    from glassformer.tasks.image_questions import AnswerGenerator as AnswerGenerator
    from glassformer.tasks.image_segmentation import ImageSegmenter as ImageSegmenter
    from glassformer.tasks.image_to_text import Captioner as Captioner
    from glassformer.tasks.question_answering import QuestionAnswerer as QuestionAnswerer
    from glassformer.tasks.segmentation import MaskGeneration as MaskGeneration
    from glassformer.tasks.segmentation import PromptSegmenter as PromptSegmenter
    from glassformer.tasks.segmentation import SegmentationPrompt as SegmentationPrompt
    from glassformer.tasks.series_classification import SeriesClassifier as SeriesClassifier
    from glassformer.tasks.streaming import TextStream as TextStream
    from glassformer.tasks.text_generation import GeneratedText as GeneratedText
    from glassformer.tasks.text_generation import TextGenerator as TextGenerator
    from glassformer.tasks.token_classification import TokenClassifier as TokenClassifier
    from glassformer.tasks.translation import Restorer as Restorer
    from glassformer.tasks.translation import Summarizer as Summarizer
    from glassformer.tasks.translation import Translator as Translator
    from glassformer.tasks.zero_shot import ZeroShotClassifier as ZeroShotClassifier

# imported on first use, so that translating does not import the code of other tasks
_MODULE_OF = {
    **dict.fromkeys(("Callbacks", "RejectedInputError", "Task"), "base"),
    **dict.fromkeys(("Captioner",), "image_to_text"),
    **dict.fromkeys(("ChatGenerator",), "chat"),
    **dict.fromkeys(("Classifier",), "classification"),
    **dict.fromkeys(("Classification", "Label"), "declarations.classify"),
    **dict.fromkeys(("Detector",), "detection"),
    **dict.fromkeys(("Embedder", "SimilaritySearch"), "embedding"),
    **dict.fromkeys(("Match",), "declarations.similar"),
    **dict.fromkeys(("MaskFiller",), "fill_mask"),
    **dict.fromkeys(("FilledText",), "declarations.fill"),
    **dict.fromkeys(("Forecast", "Forecaster"), "forecasting"),
    **dict.fromkeys(("AnswerChat", "AnswerClassifier", "AnswerGenerator"), "image_questions"),
    **dict.fromkeys(("ImageAnswer", "ScoredAnswer"), "declarations.ask"),
    **dict.fromkeys(("ImageSegmenter",), "image_segmentation"),
    **dict.fromkeys(("QuestionAnswerer",), "question_answering"),
    **dict.fromkeys(("Answer",), "declarations.answer"),
    **dict.fromkeys(("MaskGeneration", "SegmentationPrompt", "PromptSegmenter"), "segmentation"),
    **dict.fromkeys(("SeriesClassifier",), "series_classification"),
    **dict.fromkeys(("TextStream",), "streaming"),
    **dict.fromkeys(("GeneratedText", "TextGenerator"), "text_generation"),
    **dict.fromkeys(("TokenClassifier",), "token_classification"),
    **dict.fromkeys(("Entity",), "declarations.ner"),
    **dict.fromkeys(("Restorer", "Summarizer", "Translator"), "translation"),
    **dict.fromkeys(("ZeroShotClassifier",), "zero_shot"),
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'glassformer.tasks' has no attribute '{name}'")
    return getattr(import_module(f"glassformer.tasks.{_MODULE_OF[name]}"), name)
