"""Options of commands beside those of a training step: device, budget, search, data, run. Each is declared once."""

from __future__ import annotations

from dataclasses import replace

from poetc.datasets import KINDS
from poetc.declare import LARGEST_SEED, Choice, Number, Option, Switch, Text, When, Whole, in_group
from poetc.errors import UsageError
from poetc.scheduling import DEFAULT_GAP, TRAINING_GAP, Objective
from poetc.scheduling.schedule import GROUPINGS
from poetc.training.rates import kinds

SECONDS = Number(above=True)


def _names(text: str) -> None:
    """An empty value is no list of names, and would be taken for the default."""
    if not text:
        raise UsageError("--processors '': name processors, or main for the main one alone")


DEVICE = Option(
    name="device",
    group="budget",
    default="host",
    short="-d",
    metavar="NAME|FILE",
    usual="Device profile: `poetc profile list`, or a file.",
    help="Device profile: a name from `poetc profile list`, or a YAML file.",
)
BATCH = Option(
    name="batch",
    values=Whole(1),
    group="model",
    metavar="N",
    usual="Rows of a training batch.",
    help="Rows of a training batch; needed where the model leaves its shapes open.",
)
INFER_BATCH = Option(
    name="infer_batch",
    values=Whole(1),
    group="model",
    metavar="N",
    default_text="the rows of a training batch",
    help="Rows of a prediction and of an evaluation.",
)
BUDGET = Option(
    name="budget",
    group="budget",
    short="-b",
    metavar="SIZE",
    usual="RAM: 256kB, 60% of the keep-all peak, or least.",
    default_text="the device's RAM",
    help="All RAM that training may use: 256MB (10^6), 256MiB, 60% of the keep-all peak, or `least`. `least` is "
    "the smallest budget that is found, with operands streamed where that needs less; a deadline of 1.04x "
    "keeps it from costing much. Or a budget for each bank of RAM: axi=400kB,dtcm=100kB.",
)
LIMITS = in_group(
    "budget",
    Option(
        name="deadline",
        metavar="TIME",
        help="The longest time of one training step: 2.5s, 300ms, or 1.3x the time without any recomputing or paging.",
    ),
    Option(
        name="objective",
        values=Choice(tuple(objective.value for objective in Objective)),
        default_text="energy, or the objective of a problem.json",
        help="The quantity to minimise.",
    ),
    Option(
        name="paging",
        values=Switch(has_no=True),
        default=True,
        help="Whether tensors may go to the device's store.",
    ),
    Option(
        name="dma",
        values=Switch(),
        default=False,
        help="Transfers overlap compute, for a store whose profile says `mode: dma`. On Linux a thread moves pages.",
    ),
    Option(
        name="processors",
        values=Text(_names),
        default="auto",
        metavar="NAMES",
        help="Processors that work beside the main one: names in the device's profile with commas between, or `all`. "
        "`main`: it works alone. `auto`: the equal cores of a device that runs Linux, in the best of three ways: "
        "threads, side by side, one core alone. Elsewhere `auto` is `main`.",
    ),
    Option(
        name="max_written",
        metavar="SIZE",
        help="The most that one training step may write to the store, in whole blocks. Writing wears it out.",
    ),
    Option(
        name="state",
        values=Choice(("auto", "ram", "store")),
        default="auto",
        help="Place of weights and optimizer state between steps: in RAM, or on the store, which is read in each step. "
        "With auto it is chosen one by one, together with the schedule.",
    ),
)
_BEST = When("train", ("best",))
IMPORTANCE = in_group(
    "updates",
    Option(
        name="importance",
        when=_BEST,
        metavar="FILE",
        help="The importance of updates, as poetc importance writes it. The set with the most that fits budget, "
        "deadline, flash and --max-energy is trained.",
    ),
    Option(
        name="importance_at_least",
        when=_BEST,
        metavar="X",
        help="Take the set of least energy with this importance, a number or 80% of that of all.",
    ),
    Option(
        name="max_energy",
        when=_BEST,
        metavar="ENERGY",
        help="The most energy of a training step, 2.5mJ, or 0.6x of training everything.",
    ),
)
GROUP = Option(
    name="group",
    values=Choice(GROUPINGS),
    group="search",
    default="auto",
    help="Units of a published solver: operators, or layers as in the graphs of its paper. auto: layers where there "
    "are too many operators.",
)
MILP = in_group(
    "search",
    Option(
        name="milp_solver",
        default="highs",
        metavar="NAME",
        help="Program for the MILPs of the solver: highs, or one that PuLP finds here (cbc, scip, gurobi, cplex, ...).",
    ),
    Option(
        name="write_model",
        metavar="FILE.mps|FILE.lp",
        help="Write each MILP that the solver solves to a file, the second to FILE-2 and so on.",
    ),
)
SEARCH = in_group(
    "search",
    Option(
        name="solver",
        default="poetc",
        metavar="NAME",
        help="Solver to use: `poetc solvers` lists them.",
    ),
    GROUP,
    Option(
        name="time_limit",
        values=SECONDS,
        default=60.0,
        metavar="SECONDS",
        help="Time of reading, search and proof. The best schedule by then is the answer.",
    ),
    Option(
        name="gap",
        values=Number(0, 1),
        default=DEFAULT_GAP,
        metavar="FRACTION",
        help="Stop when no schedule can save more than this fraction of the cost: 0.001 is 0.1 %; 0 proves on.",
    ),
    Option(
        name="fixed_order",
        values=Switch(),
        default=False,
        help="Keep the model's order of operators. By default the solver poetc looks for an order that needs less RAM.",
    ),
)
TRAIN_SEARCH = tuple(replace(o, default=TRAINING_GAP) if o.name == "gap" else o for o in SEARCH)  # of poetc train
VALIDATION = in_group(
    "data",
    Option(
        name="validation",
        metavar="DATA",
        usual="Data to evaluate on after each epoch.",
        help="Data on which the model is evaluated after each epoch.",
    ),
    Option(
        name="validation_split",
        values=Number(above=True, below=1.0),
        metavar="SHARE",
        usual="Or take this share of the training data.",
        help="Take this share of the data for validation, drawn by --seed, the same of each class.",
    ),
)
EPOCHS = Option(
    name="epochs",
    values=Whole(1),
    group="run",
    metavar="N",
    usual="Passes over the data.",
    help="Passes over the data.",
)
NORMALIZE = Option(
    name="normalize",
    group="data",
    metavar="HOW",
    usual="Scale inputs: 0..255, MEAN,STD, or auto.",
    help="Scale inputs: 0..255 (becomes 0..1), 0..255->-1..1, MEAN,STD (of channels: M1/M2/M3,S1/S2/S3), or auto: "
    "mean and standard deviation of the training data, by channel.",
)
ANY_RANGE = Option(
    name="any_range",
    values=Switch(),
    group="data",
    default=False,
    default_text="refuse them, unless the model itself scales them",
    help="Train on inputs that look unscaled too: beyond 16, and whole or of one sign.",
)
NUMERICS = Option(
    name="numerics",
    values=Choice(("separate", "fused", "fast")),
    group="output",
    default_text="the device's",
    help="Rounding of a multiply-add. separate: product and sum; fused: once; fast: once, by a Cortex-M55's Helium.",
)
CHECKPOINT = Option(
    name="checkpoint",
    values=Whole(),
    group="output",
    metavar="N",
    default_text="1 on boards with a store of their own, and where state lives on the store; else 0",
    help="Firmware saves its state to the store after every N steps, and resumes from there; 0: never.",
)

# Of `poetc validate`.
COMPARED_STEPS = Option(
    name="steps",
    values=Whole(1),
    group="output",
    default=3,
    metavar="N",
    help="Steps that are compared with keep-all; one more is run for the peak.",
)

# Of `poetc generate`.
_DRAWN = When("top_p")
CHAT = Option(
    name="chat",
    values=Switch(),
    group="output",
    default=False,
    help="The prompt is a user's message in the template beside the tokenizer.",
)
DRAWING = in_group(
    "output",
    Option(
        name="top_p",
        values=Number(0, 1),
        default=0.0,
        metavar="P",
        help="Draw from the likeliest tokens that share P of the probability; 0: always the likeliest one.",
    ),
    Option(
        name="temperature",
        values=Number(above=True),
        default=1.0,
        metavar="T",
        when=_DRAWN,
        help="Divide the scores by T before drawing.",
    ),
    Option(
        name="seed",
        values=Whole(),
        default=0,
        metavar="N",
        when=_DRAWN,
        help="Seed of the tokens that are drawn.",
    ),
)
TEMPLATE = Option(
    name="chat_template",
    group="output",
    metavar="FILE",
    when=When("chat"),
    default_text="that beside the tokenizer",
    help="A template of your own.",
)
OF_GENERATE = (CHAT, *DRAWING, TEMPLATE)

# Of `poetc train`: its data, of which each kind declares its own options, and the run.
_KINDS = sorted(KINDS.values(), key=lambda kind: bool(kind.help))
_MORE = "".join(f" {kind.help}" for kind in _KINDS if kind.help)
OF_KINDS = in_group("data", *(option for kind in _KINDS for option in kind.options))
DATA = in_group(
    "data",
    Option(
        name="data",
        metavar="DATA",
        usual="File, folder or module:function: --help data.",
        help=f"Data: {', '.join(kind.description for kind in _KINDS)}. Or a function: package.module:function. "
        f"FILE:ARRAYS names its arrays: d.npz:x_train,y_train.{_MORE}",
    ),
    *VALIDATION,
    NORMALIZE,
    ANY_RANGE,
    Option(
        name="augment",
        default="",
        metavar="HOW",
        help="Change inputs at random, several ways with commas. Images: flip, crop:PIXELS, cutout:PIXELS. Signals: "
        "shift:PLACES. Any: gain:SHARE, noise:DEVIATION.",
    ),
    Option(
        name="seed",
        values=Whole(0, LARGEST_SEED),
        default=0,
        help="Seed of the order of samples, and of everything that is drawn.",
    ),
    Option(
        name="shuffle",
        values=Switch(has_no=True),
        default=True,
        help="Take a new order of the samples in each epoch.",
    ),
    *OF_KINDS,
)
RUN = in_group(
    "run",
    EPOCHS,
    Option(
        name="schedule",
        default="constant",
        metavar="SCHEDULE",
        help=f"Schedule of the learning rate, by updates: {', '.join(kind.example for kind in kinds())}."
        " Each also takes warmup=N.",
    ),
    Option(
        name="patience",
        values=Whole(1),
        metavar="EPOCHS",
        help="Stop when so many epochs in a row were no better than the best.",
    ),
    Option(
        name="ema",
        values=Number(above=True, below=1.0),
        metavar="DECAY",
        help="Evaluate and write an average of the weights, of which each update keeps this share (0.999).",
    ),
    Option(
        name="metrics",
        metavar="NAMES",
        default_text="accuracy; mae for numbers",
        help="Metrics of the validation: accuracy, top5, confusion, mse, mae, perplexity.",
    ),
    Option(
        name="save_every",
        values=Whole(1),
        metavar="STEPS",
        default_text="a minute, and after each epoch",
        help="Steps between checkpoints.",
    ),
    Option(
        name="log",
        metavar="DIR",
        help="Write losses, metrics and rates here while training runs: events for TensorBoard, and log.jsonl.",
    ),
    Option(
        name="sample",
        metavar="PROMPT",
        help="Show the text of a language model behind this prompt before and after the training.",
    ),
    Option(
        name="elastic",
        values=Switch(),
        default=False,
        help="Follow the memory that Linux leaves to this process. The model is a directory of `poetc bundle`.",
    ),
)
