"""Tasks: sources of sequences and their answers, one per file.

The options of a task are a frozen dataclass. Its ``load()`` returns a ``Task``, whose batches are functions of their
number.
"""

from holdfast.tasks._base import IGNORED, Arrays, Batch, Drawn, Sequences, Spec, Split, Stream, Task
from holdfast.tasks.addition import Addition
from holdfast.tasks.bird import BirdAudio
from holdfast.tasks.catalogue import TASKS, TaskFile, options, status
from holdfast.tasks.characters import Characters
from holdfast.tasks.columns import Columns
from holdfast.tasks.copying import Copying
from holdfast.tasks.fetch import Source, locate, read_bytes, read_text
from holdfast.tasks.gaussian import GaussianInstances
from holdfast.tasks.glove import WordVectors, read_glove
from holdfast.tasks.har import HAR
from holdfast.tasks.own_data import OwnData, OwnTask, in_memory
from holdfast.tasks.pixels import PixelMNIST
from holdfast.tasks.preparation import Preparation, Prepared
from holdfast.tasks.ptb import PennTreebank
from holdfast.tasks.sst import SentimentTrees
from holdfast.tasks.vocabulary import Vocabulary
from holdfast.tasks.wikitext2 import WikiText2

__all__ = [  # noqa: RUF022 - by layer
    # what a task is
    "IGNORED",
    "Arrays",
    "Batch",
    "Drawn",
    "Sequences",
    "Spec",
    "Split",
    "Stream",
    "Task",
    # synthetic
    "Addition",
    "Copying",
    "GaussianInstances",
    # signals and images
    "HAR",
    "BirdAudio",
    "PixelMNIST",
    # text
    "Characters",
    "PennTreebank",
    "SentimentTrees",
    "Vocabulary",
    "WikiText2",
    "WordVectors",
    "read_glove",
    # your own
    "Columns",
    "OwnData",
    "OwnTask",
    "Preparation",
    "Prepared",
    "in_memory",
    # all of them by name, and their files
    "TASKS",
    "Source",
    "TaskFile",
    "locate",
    "options",
    "read_bytes",
    "read_text",
    "status",
]
