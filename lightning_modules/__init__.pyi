"""Tasks for Lightning: the public surface, whose names resolve in YAML without a path."""

from .data import ImageData as ImageData
from .tasks.certified.classifier import CertifiedClassifier as CertifiedClassifier
from .tasks.image import ImageClassifier as ImageClassifier
from .tasks.language import LanguageModel as LanguageModel
from .tasks.language import TextClassifier as TextClassifier
from .tasks.recall import SequenceRecall as SequenceRecall
from .tasks.task import Task as Task
