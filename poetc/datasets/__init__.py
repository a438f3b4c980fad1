"""Data to train on: sources (one file a format), their checks, their order, and the changes to a batch."""

from poetc.datasets._batching import Batches, Evaluation
from poetc.datasets._columns import Samples, require_no_idle
from poetc.datasets._kinds import KINDS, Settings
from poetc.datasets._matching import check_values, looks_raw, parse_selection, samples_of
from poetc.datasets._normalizing import Normalization
from poetc.datasets._opening import fits, ignored_by, open_source
from poetc.datasets._slots import Slot, batch_size, slots_of
from poetc.datasets._splitting import split
from poetc.datasets._stored import StoredArray
from poetc.datasets._tokenizing import Span, Tokenizer, find_tokenizer
from poetc.datasets.augmentations import Augmentations
from poetc.datasets.function import BatchFunction
