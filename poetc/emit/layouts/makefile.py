"""A Makefile: `make` builds a program, firmware or a library. The layout of a directory that stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from poetc.boards import Target
from poetc.emit._firmware import call_graph_flags, makefile_lines
from poetc.emit._package import MODULES, init_source, package_readme
from poetc.emit.layouts._contents import Contents, include_folders
from poetc.emit.layouts._layout import Layout
from poetc.emit.layouts._readme import readme
from poetc.runtime import runtime_directory

LINKED = ("train", "libmodel.a", "libmodel.so", "firmware.elf")
BEGINNING = "# `make` builds "
MAP = "firmware.map"  # made with firmware.elf
PRODUCTS = ("build", "__pycache__", *LINKED, MAP)  # of a Makefile
GOALS = {"program": "train", "library": "libmodel.a", "firmware": "firmware.elf", "package": "libmodel.so"}


def place(contents: Contents) -> dict[str, bytes | Path]:
    """All files in one folder with a Makefile; for a Python package its modules, too."""
    target = contents.target
    files: dict[str, bytes | Path] = {
        **contents.written,
        **contents.data_sources(),
        **contents.runtime,
        **contents.port,
    }
    sources = sorted(name for name in files if name.endswith((".c", ".S")))
    files["Makefile"] = _makefile(contents, sources).encode()
    if target.build == "package":
        (module,) = contents.modules
        files |= {"__init__.py": init_source(module).encode(), "README.md": package_readme(module, target).encode()}
        files |= {name: runtime_directory() / name for name in MODULES}
    else:
        files["README.md"] = readme(contents, _how(contents, sources)).encode()
    return files


def makefile_in(directory: Path) -> str:
    """ "" where there is none of this layout: programs of any other Makefile are the user's."""
    try:
        text = (directory / "Makefile").read_text()
    except (OSError, UnicodeDecodeError):
        return ""
    return text if text.startswith(BEGINNING) else ""


def remove_outdated(directory: Path, old: str) -> None:
    """Remove programs that the Makefile `old` linked, if another one has taken its place: nobody takes them for new."""
    if not old or makefile_in(directory) == old:
        return
    rules = {line.partition(":")[0] for line in old.splitlines()}
    for name in (*rules.intersection(LINKED), *([MAP] if "firmware.elf" in rules else [])):
        if (directory / name).is_file():
            (directory / name).unlink()


def _how(contents: Contents, sources: Sequence[str]) -> list[str]:
    """The README's lines about building."""
    target = contents.target
    lines = [f"C99 without heap or mutable globals; made by poetc for {target.name}, {contents.numerics} numerics."]
    if target.build == "library":
        lines += ["`make` builds `libmodel.a`, for firmware that has a start-up and, if the program pages, a driver;"]
        lines += ["the files compile with"]
    elif target.build == "firmware":
        lines += ["`make` builds `firmware.elf`; change `port/` for other hardware. The files compile with"]
    else:
        lines += ["`make` builds `train`; so does"]
    return [*lines, "", f"    {_one_line(contents, sources)}", ""]


def _makefile(contents: Contents, sources: Sequence[str]) -> str:
    target = contents.target
    objects = [f"build/{Path(s).with_suffix('.o').as_posix()}" for s in sources]
    program = ["build/main.o", "build/port/poetc_loop.o"] if "main.c" in sources else []  # not of the library
    library = [o for o in objects if o not in program]
    goal = GOALS[target.build]
    threads = "-pthread" if contents.has_processors else "$(if $(THREADS),-pthread)"
    lines = [
        f"{BEGINNING}{goal}. CC, CROSS_COMPILE, CFLAGS (optimisation and processor) and LDFLAGS may be given.",
        f"CROSS_COMPILE ?= {target.cross_compile}".rstrip(),
        "ifeq ($(origin CC),default)",
        "CC = $(CROSS_COMPILE)gcc",
        "endif",
        "ifeq ($(origin AR),default)",
        "AR = $(CROSS_COMPILE)ar",
        "endif",
        f"CFLAGS ?= {target.flags}",
        f"POETC_CFLAGS = {contents.compiler_flags()} -ffunction-sections -fdata-sections{call_graph_flags(target)}"
        + " -fPIC" * (target.build == "package"),
        f"CPPFLAGS += {_include_flags(sources)}",
        *_thread_options(contents),
        *_program_options(contents),
        "",
        *_make_list("LIBRARY", library),
        "",
        f"all: {goal}",
        "",
    ]
    if target.build == "program":
        lines += [
            f"train: {' '.join([*program, '$(LIBRARY)'])}",
            f"\t$(CC) $(CFLAGS) -Wl,--gc-sections -o $@ $^ $(LDFLAGS) {threads}",
            "",
            "# The same code as a shared library: build it with CFLAGS='-O2 -fPIC'.",
        ]
    if target.hosted:
        lines += [
            "libmodel.so: $(LIBRARY)",
            f"\t$(CC) $(CFLAGS) -shared -o $@ $^ $(LDFLAGS) {threads}",
            "",
        ]
    if target.build == "firmware":
        lines += makefile_lines(target)
    lines += [
        "libmodel.a: $(LIBRARY)",
        "\trm -f $@",
        "\t$(AR) rcs $@ $^",
        "",
        "build/%.o: %.c",
        "\t@mkdir -p $(dir $@)",
        "\t$(CC) $(POETC_CFLAGS) $(CFLAGS) $(CPPFLAGS) -MMD -MP -c -o $@ $<",
        "",
        "build/%.o: %.S",
        "\t@mkdir -p $(dir $@)",
        "\t$(CC) $(CFLAGS) $(CPPFLAGS) -c -o $@ $<",
        "",
        *(f"build/{Path(name).with_suffix('.o')}: $(wildcard *.bin)" for name in contents.data_sources()),
        "",
        "clean:",
        f"\trm -rf {' '.join(PRODUCTS)}",
        "",
        ".PHONY: all clean",
        "-include $(LIBRARY:.o=.d)",
        "",
    ]
    return "\n".join(lines)


def _thread_options(contents: Contents) -> list[str]:
    if not contents.target.hosted:
        return []
    return [
        "# THREADS=N: large kernels run in N threads, or fewer if the environment's POETC_THREADS says so: same bits.",
        "# After a change: make clean.",
        f"THREADS ={f' {contents.threads}' if contents.threads > 1 else ''}",
        "POETC_CFLAGS += $(if $(THREADS),-DPOETC_THREADS=$(THREADS) -pthread)",
    ]


def _program_options(contents: Contents) -> list[str]:
    target, has_bundle = contents.target, any(module.bundle for module in contents.modules)
    if "device" not in target.ports:
        return []
    return [
        "# State is saved to the store after so many steps (0: never). All data are used EPOCHS times. GRADIENTS=1",
        "# logs a checksum of the gradients of each step. After a change: make clean.",
        f"CHECKPOINT_STEPS ?= {contents.checkpoint}",
        "EPOCHS ?= 1",
        "GRADIENTS ?=",
        "CPPFLAGS += -DPOETC_CHECKPOINT_STEPS=$(CHECKPOINT_STEPS) -DPOETC_EPOCHS=$(EPOCHS)"
        " $(if $(GRADIENTS),-DPOETC_LOG_GRADIENTS)",
        *([] if target.hosted else _VALIDATION_OPTION),
        *(_ELASTIC_OPTION if target.hosted and has_bundle else []),
        *_range_option(target),
    ]


_VALIDATION_OPTION = (
    "# VALIDATION=1: each epoch ends with an evaluation on validation.bin, and the best state is kept. The program",
    "# `evaluate` must be there. After a change: make clean.",
    "VALIDATION ?=",
    "CPPFLAGS += $(if $(VALIDATION),-DPOETC_VALIDATES)",
)


_ELASTIC_OPTION = (
    "# ELASTIC=1: the plan follows the memory that is left to the process. After a change: make clean.",
    "ELASTIC ?=",
    "CPPFLAGS += $(if $(ELASTIC),-DPOETC_ELASTIC)",
)


def _range_option(target: Target) -> list[str]:
    """Firmware has no room for a look at ranges."""
    if not target.hosted:
        return []
    return [
        "# ANY_RANGE=1: inputs are trained on that look as if nobody had scaled them. After a change: make clean.",
        "ANY_RANGE ?=",
        "CPPFLAGS += $(if $(ANY_RANGE),-DPOETC_ANY_RANGE)",
    ]


def _make_list(name: str, items: Sequence[str]) -> list[str]:
    return [f"{name} = \\", *(f"  {item} \\" for item in items[:-1]), f"  {items[-1]}"]


def _one_line(contents: Contents, sources: Sequence[str]) -> str:
    """The compiler's command that does without make."""
    target, checkpoint = contents.target, contents.checkpoint
    flags = f"{contents.compiler_flags()} {target.flags} {_include_flags(sources)}"
    if checkpoint:
        flags += f" -DPOETC_CHECKPOINT_STEPS={checkpoint}"
    return f"{target.cross_compile}gcc {flags} {' '.join(sources)} " + ("-o train" if target.hosted else "-c")


def _include_flags(sources: Sequence[str]) -> str:
    return " ".join(f"-I{folder}" for folder in include_folders(sources))


LAYOUT = Layout(place, programs=True, named=False)
