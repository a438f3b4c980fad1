"""Finds, reads, checks and merges device profiles. Every complaint names file, line and key.

A file may leave out numbers that it `inherits:`. Each file is checked and its sources are resolved on their own, so
that a number keeps the source of the file that states it.
"""

from __future__ import annotations

import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import yaml

from poetc.devices.modelled import is_modelled, with_modelled_loops
from poetc.devices.profile import MAIN, DeviceProfile, Processor, Quantity, Source, SourceKind
from poetc.errors import UsageError, nearest, printable
from poetc.yaml_values import KeyPath, parse, read_text

_WHOLE = ("_bytes", "_count", "_cycles", "_hz")
_POSITIVE = ("_per_s", "_hz", "_count", "_cycles", "ram_bytes", "block_bytes", "capacity_bytes", "size_bytes")
_FILE_KEYS = ("inherits", "source", "sources")  # at the top of a file, beside the fields of DeviceProfile


def list_profiles() -> tuple[str, ...]:
    """Names of the profiles that come with poetc, sorted. A file `_NAME.yaml` is only there to be inherited."""
    return tuple(sorted(p.stem for p in profile_folder().glob("[!_]*.yaml")))


def load_profile(name_or_path: str | Path) -> DeviceProfile:
    """A profile by its name or by the path of its YAML file. Raises UsageError."""
    profile, origins = _as_written(_find(name_or_path))
    profile = _with_loops(profile, ("compute", "cycles"), origins)
    for name, processor in profile.processors.items():
        if processor.compute is not None:
            own = _with_loops(profile.on(name), ("processors", name, "compute", "cycles"), origins).compute
            processors = profile.processors | {name: msgspec.structs.replace(processor, compute=own)}
            profile = msgspec.structs.replace(profile, processors=processors)
    return profile


def _with_loops(profile: DeviceProfile, at: KeyPath, origins: Mapping[KeyPath, str]) -> DeviceProfile:
    """The profile with the loops that follow from its cycles, which stand at `at`."""
    if profile.compute.cycles is None:
        return profile
    where = _where(at, origins)
    counted, _ = _as_written(_find(profile.compute.cycles.counted))
    if counted.compute.cycles is not None:
        raise UsageError(
            f"{where}: {'.'.join((*at, 'counted'))!r} names {counted.name}, whose times are modelled too; name a"
            " profile of an emulated board"
        )
    return with_modelled_loops(profile, counted, where)


def _as_written(path: Path) -> tuple[DeviceProfile, dict[KeyPath, str]]:
    """A profile without the loops that follow from its cycles, and the file of each key."""
    merged, origins = _load(path, ())
    merged["name"] = path.stem
    merged.setdefault("title", path.stem)
    _require(merged, DeviceProfile, (), origins)
    try:
        profile = msgspec.convert(merged, DeviceProfile)
    except msgspec.ValidationError as error:  # of the parts that `_require` does not look into
        raise UsageError(f"{path}: {error}") from None
    _check_whole(profile, origins)
    return profile, origins


def profile_to_dict(profile: DeviceProfile) -> dict[str, Any]:
    """The whole profile, inheritance resolved, as plain values: for artifacts and hashes."""
    result = msgspec.to_builtins(profile, order="sorted")
    assert isinstance(result, dict)
    if profile.compute.cycles is None:
        del result["compute"]["cycles"]
    if not profile.processors:
        del result["processors"]
    if profile.threads is None:
        del result["threads"]
    if profile.cpu.numerics == "separate":  # as it was before there were others, so that hashes stay
        del result["cpu"]["numerics"]
    return dict(_without_absent_bands(result))


def _without_absent_bands(value: Any) -> Any:
    """As it was before numbers had bands, so that hashes of other profiles stay."""
    if not isinstance(value, dict):
        return value
    if _is_quantity(value) and value.get("low") is None:
        return {k: v for k, v in value.items() if k not in ("low", "high")}
    return {k: _without_absent_bands(v) for k, v in value.items()}


def profile_to_yaml(profile: DeviceProfile, columns: int = 110) -> str:
    """The profile as a file that `load_profile` reads: inheritance resolved, every number with its source.

    Lines break at the first space behind `columns`.
    """
    names: dict[tuple[str, str, str], str] = {}

    def compact(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if _is_quantity(value):
            source = value["source"]
            key = (source["kind"], source["text"], source["url"])
            result = {"value": value["value"], "source": names.setdefault(key, f"{source['kind']}-{len(names) + 1}")}
            bands = {end: value[end] for end in ("low", "high") if value[end] is not None}
            return result | bands | ({"note": value["note"]} if value["note"] else {})
        return {k: compact(v) for k, v in value.items() if v is not None and v not in ({}, [])}

    document = compact(msgspec.to_builtins(profile))
    computes = [(profile.compute, document)]
    computes += [(p.compute, document["processors"][n]) for n, p in profile.processors.items() if p.compute is not None]
    for compute, section in computes:
        if compute.cycles is not None:  # the loops that follow from it are made when the file is read
            modelled = {g for g, loops in compute.loop_ns.items() if is_modelled(loops)}
            kept = {g: v for g, v in section["compute"]["loop_ns"].items() if g not in modelled}
            section["compute"]["loop_ns"] = kept
    del document["name"]
    sources = {name: {"kind": k, "text": t} | ({"url": u} if u else {}) for (k, t, u), name in names.items()}
    head = {key: document.pop(key) for key in ("title", "description") if key in document}
    return yaml.safe_dump(head | {"sources": sources} | document, sort_keys=False, allow_unicode=True, width=columns)


def profile_folder() -> Path:
    folder = resources.files("poetc.profiles")
    assert isinstance(folder, Path)  # wheels are installed unpacked
    return folder


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            if path.exists() and not path.is_dir():
                raise UsageError(f"{printable(text)}: is a device or a pipe, not a device profile")
            raise UsageError(f"no device profile at {printable(text)}")
        return path
    path = profile_folder() / f"{text}.yaml"
    if text and path.is_file():
        return path
    if Path(text).is_file():
        raise UsageError(f"{printable(text)}: is a file, but no profile, whose name ends in .yaml or .yml")
    if Path(text).suffix:
        raise UsageError(
            f"no device is called {printable(text)}, and no device profile has that name: it ends in .yaml"
        )
    known = list_profiles()
    close = _titled(text, known) or difflib.get_close_matches(text.lower(), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
    also = "poetc profile list describes them; or give the path of a profile's YAML file"
    raise UsageError(f"unknown device {text!r}; {hint} ({also})")


def _titled(text: str, names: Sequence[str]) -> list[str]:
    """The devices whose title contains `text`, by letters and digits alone: pico finds Raspberry Pi Pico."""
    asked = "".join(filter(str.isalnum, text.lower()))
    titles = []
    for name in names:
        lines = read_text(profile_folder() / f"{name}.yaml").splitlines()
        title = next((line for line in lines if line.startswith("title:")), "").removeprefix("title:")
        if asked and asked in "".join(filter(str.isalnum, (name + title).lower())):
            titles.append(name)
    return titles


def _load(path: Path, heirs: tuple[Path, ...]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """A file with all that it inherits, and where each key stands ("file:line")."""
    raw, reader, own, origins = _alone(path, read_text(path))
    parent_name = raw.get("inherits")
    if parent_name is None:
        return dict(own), origins
    if not isinstance(parent_name, str) or not parent_name:
        raise reader.error(("inherits",), "'inherits' names another profile")
    by_path = "/" in parent_name or parent_name.endswith((".yaml", ".yml"))
    try:
        parent_path = _find(path.parent / parent_name if by_path else parent_name)
    except UsageError as error:
        raise reader.error(("inherits",), str(error)) from None
    if parent_path.resolve() in [p.resolve() for p in (path, *heirs)]:
        raise reader.error(("inherits",), f"{parent_name!r} inherits this profile: a circle")
    parent, parent_origins = _load(parent_path, (path, *heirs))
    parent.pop("title", None)
    parent.pop("description", None)
    return _merge(parent, own), parent_origins | origins


@functools.lru_cache(maxsize=64)
def _alone(path: Path, text: str) -> tuple[dict[str, Any], _File, dict[str, Any], dict[KeyPath, str]]:
    """A file of this text without the one that it inherits. Nobody changes the answer, which many profiles share."""
    raw, lines = parse(text, path)
    reader = _File(path, lines)
    return raw, reader, reader.read(raw), {at: f"{path}:{line}" for at, line in lines.items()}


def _merge(parent: dict[str, Any], child: dict[str, Any]) -> dict[str, Any]:
    """The child's numbers replace the parent's, sections merge, `null` takes a key away."""
    result = dict(parent)
    for key, value in child.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(parent.get(key), dict) and not _is_quantity(value):
            result[key] = _merge(parent[key], value)
        else:
            result[key] = value
    return result


def _is_quantity(value: Mapping[str, Any]) -> bool:
    return "value" in value and "source" in value


def _unwrap(hint: Any) -> Any:
    """X of `X | None`."""
    if isinstance(hint, types.UnionType):
        return next(a for a in typing.get_args(hint) if a is not type(None))
    return hint


@functools.cache
def _fields(cls: type[msgspec.Struct]) -> dict[str, tuple[Any, bool]]:
    """By name, the type of a field and whether it must be given."""
    return {f.name: (_unwrap(f.type), f.required) for f in msgspec.structs.fields(cls)}


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


@dataclass
class _File:
    """One file: checks keys and types, and turns every number into {value, source, note}."""

    path: Path
    lines: Mapping[KeyPath, int]
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)

    def error(self, at: KeyPath, message: str) -> UsageError:
        while at not in self.lines:
            at = at[:-1]
        return UsageError(f"{self.path}:{self.lines[at]}: {message}")

    def read(self, raw: dict[str, Any]) -> dict[str, Any]:
        self._read_sources(raw.get("sources"))
        body = {k: v for k, v in raw.items() if k not in _FILE_KEYS}
        default = self._source_of(raw, (), None)
        return self._section(body, DeviceProfile, (), default, extra=("inherits", "sources"), hidden=("name",))

    def _read_sources(self, raw: Any) -> None:
        if raw is None:
            return
        if not isinstance(raw, dict):
            raise self.error(("sources",), "'sources' is a section: a short name for each source")
        for name, value in raw.items():
            at = ("sources", name)
            if not isinstance(value, dict):
                raise self.error(at, f"source {name!r} is a section with 'kind' and 'text'")
            self._known_keys(value, ("kind", "text", "url"), at)
            if (kind := value.get("kind")) not in typing.get_args(SourceKind):
                kinds = ", ".join(typing.get_args(SourceKind))
                raise self.error(at, f"source {name!r}: its kind is {_shown(kind)}; choose from {kinds}")
            try:
                self.sources[name] = msgspec.to_builtins(msgspec.convert(value, Source))
            except msgspec.ValidationError as error:
                raise self.error(at, f"source {name!r}: {_lower(error)}") from None

    def _known_keys(self, raw: Mapping[str, Any], known: Iterable[str], at: KeyPath) -> None:
        known = sorted(known)
        for key in raw:
            if key not in known:
                alike = next((k for k in known if key[:4] == k[:4]), "")
                otherwise = f"did you mean {alike!r}?" if alike else f"known here: {', '.join(known)}"
                hint = nearest(key, known, otherwise, cutoff=0.5)
                where = f" in {'.'.join(at)!r}" if at else ""
                raise self.error((*at, key), f"unknown key {key!r}{where}; {hint}")

    def _source_of(self, raw: Mapping[str, Any], at: KeyPath, default: str | None) -> str | None:
        name: str | None = raw.get("source", default)
        if name is not None and (not isinstance(name, str) or name not in self.sources):
            known = f"'sources' has: {', '.join(sorted(self.sources)) or 'none'}"
            hint = nearest(str(name), self.sources, known, cutoff=0.5)
            raise self.error((*at, "source"), f"unknown source {name!r}; {hint}")
        return name

    def _section(
        self,
        raw: Any,
        cls: type[msgspec.Struct],
        at: KeyPath,
        source: str | None,
        extra: tuple[str, ...] = (),
        hidden: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise self.error(at, f"{'.'.join(at)!r} is a section of keys, not {_shown(raw)}")
        hints = {name: hint for name, (hint, _) in _fields(cls).items() if name not in hidden}
        self._known_keys(raw, (*hints, "source", *extra), at)
        source = self._source_of(raw, at, source)
        return {
            key: None if value is None else self._value(value, hints[key], (*at, key), source)
            for key, value in raw.items()
            if key != "source"
        }

    def _value(self, raw: Any, hint: Any, at: KeyPath, source: str | None) -> Any:
        if hint is Quantity:
            return self._quantity(raw, at, source)
        if _is_section(hint):
            return self._section(raw, hint, at, source)
        if typing.get_origin(hint) is dict:
            if not isinstance(raw, dict):
                raise self.error(at, f"{'.'.join(at)!r} is a section of keys, not {_shown(raw)}")
            source = self._source_of(raw, at, source)
            item = typing.get_args(hint)[1]
            return {
                key: None if value is None else self._value(value, item, (*at, key), source)
                for key, value in raw.items()
                if key != "source"
            }
        try:
            return msgspec.convert(raw, hint)
        except msgspec.ValidationError as error:
            choices = [str(c) for c in typing.get_args(hint)] if typing.get_origin(hint) is typing.Literal else []
            reason = f"one of {', '.join(choices)}, not {_shown(raw)}" if choices else _lower(error)
            raise self.error(at, f"{'.'.join(at)!r}: {reason}") from None

    def _quantity(self, raw: Any, at: KeyPath, source: str | None) -> dict[str, Any]:
        name = ".".join(at)
        value, note = raw, ""
        if isinstance(raw, dict):
            self._known_keys(raw, ("value", "source", "note", "low", "high"), at)
            source, value, note = self._source_of(raw, at, source), raw.get("value"), raw.get("note", "")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(at, f"{name!r} must be a number, not {_shown(value)}")
        if not isinstance(note, str):
            raise self.error(at, f"the note of {name!r} must be text")
        if source is None:
            raise self.error(
                at, f"{name!r} has no source: write {{value: {value}, source: ...}} or give its section one"
            )
        if not math.isfinite(value) or value < 0:
            raise self.error(at, f"{name!r} must be a finite number, zero or more, not {value}")
        if value == 0 and (at[-1].endswith(_POSITIVE) or "efficiency" in at):
            raise self.error(at, f"{name!r} must be greater than zero")
        if at[-1].endswith(_WHOLE):
            if value != int(value):
                raise self.error(at, f"{name!r} must be a whole number, not {value}")
            value = int(value)
        band = self._band(raw, value, at) if isinstance(raw, dict) else {}
        return {"value": value, "source": self.sources[source], "note": note, **band}

    def _band(self, raw: Mapping[str, Any], value: float, at: KeyPath) -> dict[str, Any]:
        """`low` and `high` around the value, or neither."""
        band = {end: raw[end] for end in ("low", "high") if raw.get(end) is not None}
        if not band:
            return {}
        name = ".".join(at)
        for end, number in band.items():
            if isinstance(number, bool) or not isinstance(number, (int, float)) or not math.isfinite(number):
                raise self.error(at, f"the {end} end of {name!r} must be a number, not {_shown(number)}")
        if len(band) < 2:
            raise self.error(at, f"the band of {name!r} has two ends: give both 'low' and 'high'")
        if not 0 <= band["low"] <= value <= band["high"]:
            raise self.error(
                at, f"the band of {name!r}, {band['low']} to {band['high']}, does not hold its value {value}"
            )
        if band["low"] == 0 and at[-1].endswith(_POSITIVE):
            raise self.error(at, f"the low end of {name!r} must be greater than zero")
        return band


def _shown(value: Any) -> str:
    return "empty" if value is None else "a section" if isinstance(value, dict) else repr(value)


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


def _require(raw: Mapping[str, Any], cls: type[msgspec.Struct], at: KeyPath, origins: Mapping[KeyPath, str]) -> None:
    """Every field without a default is there, in this section and below."""
    for name, (hint, required) in _fields(cls).items():
        value = raw.get(name)
        if value is None:  # nothing there, or an inherited section that is taken away
            if required:
                where = f"section {'.'.join(at)!r}" if at else "the profile"
                raise UsageError(f"{_where(at, origins)}: {where} lacks {name!r}")
            continue
        if hint is Quantity:
            continue
        if _is_section(hint):
            _require(value, hint, (*at, name), origins)
        elif (
            typing.get_origin(hint) is dict and _is_section(inner := typing.get_args(hint)[1]) and inner is not Quantity
        ):
            for key, section in value.items():
                _require(section, inner, (*at, name, key), origins)


def _where(at: KeyPath, origins: Mapping[KeyPath, str]) -> str:
    while at not in origins:
        at = at[:-1]
    return origins[at]


def _check_whole(profile: DeviceProfile, origins: Mapping[KeyPath, str]) -> None:
    """Mistakes that no single key makes."""
    if profile.default_store and profile.default_store not in profile.stores:
        known = ", ".join(sorted(profile.stores)) or "none"
        at = _where(("default_store",), origins)
        raise UsageError(f"{at}: 'default_store' is {profile.default_store!r}, but 'stores' has: {known}")
    if profile.stores and not profile.default_store:
        raise UsageError(f"{_where(('stores',), origins)}: there are stores, so 'default_store' must name one of them")
    for name, store in profile.stores.items():
        block_bytes, key = int(store.block_bytes.value), f"'stores.{name}.block_bytes'"
        at = _where(("stores", name, "block_bytes"), origins)
        if block_bytes % 16 or block_bytes < 32:
            raise UsageError(f"{at}: {key} must be a multiple of 16, at least 32, not {block_bytes}")
        if block_bytes > store.capacity_bytes.value:
            raise UsageError(f"{at}: {key} is more than the store's capacity, {int(store.capacity_bytes.value)}")
    if profile.power.idle_w.value > profile.power.active_w.value:
        raise UsageError(f"{_where(('power', 'idle_w'), origins)}: 'power.idle_w' is more than 'power.active_w'")
    if profile.threads is not None and not 0 < profile.threads.efficiency.value <= 1:
        at = _where(("threads", "efficiency"), origins)
        raise UsageError(
            f"{at}: 'threads.efficiency' is {profile.threads.efficiency.value}, it must be above 0, at most 1"
        )
    for name, processor in profile.processors.items():
        _check_processor(profile, name, processor, origins)
    if profile.base_bytes >= profile.ram_bytes:
        at = _where(("memory", "ram_bytes"), origins)
        raise UsageError(f"{at}: 'memory.ram_bytes' leaves nothing beside the runtime's state and the stack")


def _check_processor(profile: DeviceProfile, name: str, processor: Processor, origins: Mapping[KeyPath, str]) -> None:
    at: KeyPath = ("processors", name)
    if name == MAIN:
        raise UsageError(f"{_where(at, origins)}: {MAIN!r} is the processor that 'cpu' describes; take another name")
    if processor.power.idle_w.value > processor.power.active_w.value:
        where = _where((*at, "power", "idle_w"), origins)
        raise UsageError(f"{where}: 'processors.{name}.power.idle_w' is more than its 'active_w'")
    banks = {k: b for k, b in profile.memory.banks.items() if b.kind == "ram"}
    where = _where((*at, "banks"), origins)
    unknown = [b for b in processor.banks if b not in banks]
    if unknown:
        known = ", ".join(sorted(banks)) or "none"
        raise UsageError(f"{where}: 'processors.{name}.banks': there is no RAM bank {unknown[0]!r}, but {known}")
    arena = max(banks, key=lambda b: banks[b].size_bytes.value, default="")
    if processor.banks and arena not in processor.banks:
        raise UsageError(f"{where}: 'processors.{name}.banks' lacks {arena!r}, the largest bank, which holds the arena")
