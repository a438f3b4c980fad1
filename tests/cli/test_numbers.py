"""Every option that takes a number says which numbers it takes, and refuses others in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from poetc.cli import cli
from poetc.cli._choices import Value
from poetc.declare import LARGEST, Number, Whole
from poetc.errors import UsageError
from poetc.training import TrainingOptions
from tests.cli.conftest import Ended

Run = Callable[..., Ended]
WHOLES = ("-1", "2.5", "many", str(2**31), str(2**63), str(2**70), "1" + 30 * "0", str(2**1100), "9" * 5000)
FLOATS = ("nan", "inf", "-inf", "-1", "many", "9" * 5000)


def commands(command: click.Command, name: str = "poetc") -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for key, inner in command.commands.items():
            yield from commands(inner, f"{name} {key}")
    else:
        yield name, command


OPTIONS = [(name, option) for name, command in commands(cli) for option in command.params]


def test_no_option_takes_any_number() -> None:
    loose = click.types.IntParamType | click.types.FloatParamType
    assert [(name, p.name) for name, p in OPTIONS if isinstance(p.type, loose)] == []
    assert sum(isinstance(values_of(p), Whole | Number) for _, p in OPTIONS) > 50


def values_of(option: click.Parameter) -> object:
    return option.type.values if isinstance(option.type, Value) else None


def refusal(type: click.ParamType, text: str) -> str:
    """How the type refuses `text`; "" if it takes it."""
    try:
        type.convert(text, None, None)
    except (click.UsageError, UsageError) as error:
        return str(error)
    return ""


def test_what_no_option_takes_is_refused_in_one_short_line() -> None:
    for name, option in OPTIONS:
        kind = values_of(option)
        if isinstance(kind, Whole):
            refused = [text for text in WHOLES if len(text) > 20 or not text.lstrip("-").isdigit()]
            refused += [text for text in WHOLES[:6] if text not in refused and not within(kind, text)]
        elif isinstance(kind, Number):
            refused = [text for text in FLOATS if text != "-1" or kind.least >= 0]
        else:
            continue
        for text in refused:
            said = refusal(option.type, text)
            assert said and "\n" not in said and len(said) < 120, (name, option.name, text, said)


def within(kind: Whole, text: str) -> bool:
    return "." not in text and text != "many" and kind.least <= int(text) <= kind.most


def test_numbers_of_the_python_interface_are_refused_likewise() -> None:
    for options in (
        {"ignore_index": 10**30},
        {"ignore_index": -(2**31) - 1},
        {"dropout_seed": 2**70},
        {"dropout_seed": -1},
        {"random_weights": 2**63},
        {"micro_batches": 2**1100},
        {"learning_rate": 1e39},
        {"epsilon": math.inf},
        {"beta1": math.nan},
        {"momentum": "much"},
    ):
        with pytest.raises(UsageError, match=r"^--[a-z0-9-]+ \S") as caught:
            TrainingOptions(**options)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 120
    assert TrainingOptions(ignore_index=-100).ignore_index == -100
    assert TrainingOptions(micro_batches="auto", dropout_seed=LARGEST).dropout_seed == LARGEST


def test_a_number_is_named_with_its_option(poetc: Run, tmp_path: Path) -> None:
    for option, value, says in (
        ("--batch", "1" + 30 * "0", "100000000000... (31 characters) is no whole number from 1 to 2,147,483,647"),
        ("--gap", "nan", "nan is no finite number of at least 0 and at most 1"),
        ("--micro-batches", "0", "0 is no whole number from 1 to 2,147,483,647, nor auto"),
    ):
        ended = poetc("solve", tmp_path / "none.onnx", option, value, "--json")
        assert ended.code == 2 and says in json.loads(ended.out)["error"] and option in ended.err
