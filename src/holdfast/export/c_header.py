"""The header of an exported C file."""

from __future__ import annotations

import textwrap
from pathlib import Path

from holdfast.engine.targets.c import in_comment
from holdfast.export.network import Network

__all__ = ["counts_steps", "doc", "header_text", "step_head"]


def header_text(network: Network, name: str, file: Path, fields: list[tuple[str, int, str]], state: int) -> str:
    """The header ``file``: ``fields`` of the state are (name, floats, comment); ``state``: its bytes."""
    upper, counts = name.upper(), counts_steps(network)
    tokens = network.embedding is not None
    x = "token" if tokens else "x"
    about = [
        network.provenance.sentence,
        "",
        f"    {name}_state state;",
        f"    {name}_init(&state);",
        f"    {name}_step(&state, {x}, y);    once for every step; y may be NULL where no answer is wanted",
        f"    {name}_reset(&state);          before the next sequence",
        "",
        _inputs_text(network),
        _outputs_text(network),
    ]
    members = [f"    float {field}[{count}]; /* {comment} */" for field, count, comment in fields]
    if counts:
        members.append("    uint32_t steps; /* since the last reset */")
    defines = [("TOKENS" if tokens else "INPUTS", network.input_size), ("OUTPUTS", network.output_size)]
    if network.labels:
        defines.append(("CLASSES", len(network.labels)))
    defines.append(("STATE_BYTES", state))
    declared = [
        f"/* Puts the state where a sequence starts. */\nvoid {name}_init({name}_state *state);",
        f"void {name}_reset({name}_state *state);",
        doc(_step_text(network)) + f"\n{step_head(network, name)};",
    ]
    if network.labels:
        declared.insert(0, f"extern const char *const {name}_labels[{upper}_CLASSES];")
    if network.answer in ("classes", "binary"):
        classes = 2 if network.answer == "binary" else network.output_size
        declared.append(f"/* The number of the class that y is for. */\nint {name}_class(const float *y);")
        declared.append(
            f"/* The probabilities of the {classes} classes, from y. */\n"
            f"void {name}_probabilities(const float *y, float *p);"
        )
    return "\n".join(
        [
            doc("\n".join([f"{file.name}: a recurrent network, one step at a time.", "", *about])),
            "",
            f"#ifndef {upper}_H",
            f"#define {upper}_H",
            "",
            *(["#include <stdint.h>", ""] if tokens or counts else []),
            "#ifdef __cplusplus",
            'extern "C" {',
            "#endif",
            "",
            *(f"#define {upper}_{key} {value}" for key, value in defines),
            "",
            "typedef struct {",
            *members,
            f"}} {name}_state;",
            "",
            "\n\n".join(declared),
            "",
            "#ifdef __cplusplus",
            "}",
            "#endif",
            "",
            f"#endif /* {upper}_H */",
            "",
        ]
    )


def counts_steps(network: Network) -> bool:
    """Whether the readout reads a mean over time, of a reservoir or of the last layer's output."""
    return network.change is not None or (network.readout is not None and network.readout.over == "pooled")


def _inputs_text(network: Network) -> str:
    if network.embedding is not None:
        return f"Input: a token, 0 to {network.input_size - 1}."
    columns = f": {', '.join(network.columns)}" if network.columns else ""
    scaled = " They are standardised inside." if network.mean is not None else ""
    return f"Inputs ({network.input_size}){columns}.{scaled}"


def _outputs_text(network: Network) -> str:
    labels = f": {', '.join(network.labels)}" if network.labels else ""
    match network.answer:
        case "classes":
            return f"Outputs ({network.output_size}): one score per class, the highest is the answer{labels}."
        case "binary":
            return f"Outputs (1): above 0 the answer is class 1, else class 0{labels}."
        case "numbers":
            targets = f": {', '.join(network.targets)}" if network.targets else ""
            return f"Outputs ({network.output_size}){targets}."
    return f"Outputs ({network.output_size}): the output of the last layer."


def _step_text(network: Network) -> str:
    when = "after every step" if network.every_step else "for the steps since the last reset, at the last of them"
    text = f"One step from the input to the outputs y, which are the answer {when}. If y is NULL, none is computed."
    if network.embedding is not None:
        text += " Returns 0, or -1 for a token that there is not; the state is then as before."
    return text


def step_head(network: Network, name: str) -> str:
    """How ``NAME_step`` is declared."""
    if network.embedding is not None:
        return f"int {name}_step({name}_state *state, int32_t token, float *y)"
    return f"void {name}_step({name}_state *state, const float *x, float *y)"


def doc(text: str) -> str:
    """A comment; lines that start with spaces are kept as they are."""
    lines = []
    for line in map(in_comment, text.splitlines()):
        kept = not line or line.startswith("    ")
        lines += [line] if kept else textwrap.wrap(line, 96, break_long_words=False)
    return "/* " + "\n".join(lines).replace("\n", "\n   ").replace("   \n", "\n") + " */"
