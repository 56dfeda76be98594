"""From the data of a diagnosis to the sections of its page: a title, how to read it, and what to draw.

A section is plain data for ``page.js``: Plotly traces with a number for a colour, so that the script can take it from
the light or the dark palette; ``by_sample`` holds what changes with the chosen sequence; ``heat`` is a map of units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from holdfast.diagnose.diagnosis import Diagnosis, RowResult

__all__ = ["sections"]

Section = dict[str, Any]


def sections(diagnosis: Diagnosis, row: RowResult | None) -> list[Section]:
    """The sections of one row, in the order of the page; those of the whole run come first.

    Example:
        >>> import torch, holdfast
        >>> diagnosis = holdfast.diagnose(torch.nn.GRU(3, 8), torch.randn(20, 4, 3))
        >>> [section["id"] for section in sections(diagnosis, diagnosis.rows[0])][:3]
        ['reach', 'contraction', 'lyapunov']
    """
    made = [_curves(diagnosis)] if diagnosis.curves else []
    if row is not None and row.pictures:
        made += [section for draw in _ROW for section in draw(row, diagnosis)]
    return made


def _section(id: str, title: str, how: str, **more: Any) -> Section:
    return {"id": id, "title": title, "how": how, **more}


def _line(name: str, xs: Any, ys: Any, colour: int, **more: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": "lines", "name": name, "x": xs, "y": ys, "colour": colour, **more}


def _axes(x: str, y: str, *, log: bool = False, **more: Any) -> dict[str, Any]:
    scale = {"type": "log", "nticks": 7} if log else {}
    return {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": y}, **scale}, **more}


def _empty(found: Any) -> str | None:
    return "Not measured." if not found else found.get("none")


# -- one function for each picture -------------------------------------------------------------------------------------


def _reach(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("reach", {})
    how = (
        "How strongly an output depends on the input some steps before. A flat line remembers, a falling one forgets, "
        "a rising one explodes. Where a bound is proved, no gradient lies above it."
    )
    base = _section("reach", "Gradient by distance", how, none=_empty(it))
    if not base["none"]:
        positive = [[value if value else None for value in it[name]] for name in ("mean", "largest")]
        base["traces"] = [
            _line("mean", it["distances"], positive[0], 0, hovertemplate="%{x} steps back: %{y:.3g}"),
            _line("largest", it["distances"], positive[1], 1, dash="dot", hovertemplate="largest %{y:.3g}"),
        ]
        if it.get("bound"):
            bound = [value if value and value > 1e-300 else None for value in it["bound"]]
            base["traces"].append(
                _line("proved bound", it["distances"], bound, 2, dash="dash", hovertemplate="bound %{y:.3g}")
            )
        base["layout"] = _axes("steps back", "gradient", log=True)
    yield base


def _contraction(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("contraction", {})
    how = (
        "By which factor one step brings two states together: below 1 the network forgets its start, and is stable. "
        "The measured rate is a lower bound, the proved rate an upper one. The proof needs the premises below."
    )
    base = _section("contraction", "Contraction", how, none=_empty(it))
    if not base["none"]:
        norm = {"l2": "Euclidean", "linf": "largest entry"}.get(it["norm"], it["norm"])
        verdict = "stable" if it["stable"] else "not proved to be stable"
        horizon = (
            f"; inputs older than {it['horizon']:,} steps change the output by at most 0.001" if it["horizon"] else ""
        )
        base["table"] = {
            "caption": f"Measured {_number(it['observed'])}, proved {_number(it['rate'])} ({norm} norm): "
            f"{verdict}{horizon}.",
            "head": ["premise", "verdict", "why"],
            "rows": it["premises"],
        }
    yield base


def _lyapunov(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("lyapunov", {})
    how = (
        "The logarithm of the growth of small differences per step, direction by direction. Above 0 they grow, and "
        "gradients explode. At -0.1 they fall to a third in 10 steps."
    )
    base = _section("lyapunov", "Lyapunov exponents", how, none=_empty(it))
    if not base["none"]:
        count = len(it["exponents"][0])
        base["traces"] = [
            {
                "type": "scatter", "mode": "lines+markers", "name": f"sequence {number + 1}", "colour": number,
                "x": list(range(1, count + 1)), "y": values, "hovertemplate": "exponent %{x}: %{y:.4f}",
            }
            for number, values in enumerate(it["exponents"])
        ]  # fmt: skip
        base["layout"] = _axes("exponent, largest first", "per step", zero=True)
    yield base


def _spectrum(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("spectrum", {})
    how = (
        "Each point is a direction. Inside the circle it shrinks, outside it grows, on the circle it keeps its size; "
        "the angle is how far it turns in one step."
    )
    for id, title, groups in (
        ("matrices", "Eigenvalues of the recurrent matrix", list((it.get("matrices") or {}).items())),
        (
            "jacobians",
            "Eigenvalues of the Jacobian along a sequence",
            [(f"step {one['step']}", one["values"]) for one in it.get("jacobians") or []],
        ),
    ):
        missing = _empty(it) or (None if groups else "This cell has no recurrent matrix that is known.")
        base = _section(id, title, how, none=missing)
        if not missing:
            base["traces"] = [
                {
                    "type": "scatter", "mode": "markers", "name": name, "colour": number, "small": True,
                    "x": [value[0] for value in values], "y": [value[1] for value in values],
                    "text": [f"modulus {math.hypot(*value):.4f}" for value in values],
                    "hovertemplate": "%{x:.4f} %{y:+.4f}i, %{text}",
                }
                for number, (name, values) in enumerate(groups)
            ]  # fmt: skip
            base["layout"] = _axes("real part", "imaginary part", circle=True, square=True)
        yield base


def _norms(row: RowResult, diagnosis: Diagnosis) -> Iterator[Section]:
    it = row.pictures["norms"]
    for name, title, how in (
        ("state", "Size of the state", "The length of the state at each step. The band holds 80% of the sequences."),
        (
            "gradient",
            "Size of the gradient through time",
            "The length of the gradient of the loss with respect to the state at each step. Where it is far below its "
            "largest value, these steps teach nothing. A line that rises to the left explodes backwards.",
        ),
    ):
        lines, xs = it[name], it["steps"]
        log = name == "gradient"
        yield _section(
            f"{name}-norm",
            title,
            how,
            traces=[
                _line("80% of sequences", xs + xs[::-1],
                      _cleaned(lines["high"], log) + _cleaned(lines["low"], log)[::-1], 0, band=True, hoverinfo="skip"),
                _line("mean", xs, _cleaned(lines["mean"], log), 0, hovertemplate="step %{x}: %{y:.3g}"),
            ],
            by_sample=[[]] + [
                [_line(f"sequence {number}", xs, _cleaned(one, log), 1, hovertemplate="this sequence %{y:.3g}")]
                for number, one in zip(diagnosis.samples, lines["samples"], strict=True)
            ],
            layout=_axes("step", name, log=log),
        )  # fmt: skip


def _gates(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    reading = {
        "sigmoid": "0 is closed, 1 is open. A row that stays at either end is saturated and learns slowly.",
        "tanh": "Rows at -1 or 1 are saturated: they pass almost no gradient.",
        "relu": "A row that is 0 throughout belongs to a dead unit.",
    }
    units = row.pictures["units"]
    for it in row.pictures["gates"]:
        kept = it["units"]
        orders = {name: [values[unit] for unit in kept] for name, values in units.items() if len(values) > max(kept)}
        if it["saturated"] is not None:
            orders["saturation"] = it["saturated"]
        how = f"One row per unit, over time. {reading.get(it['kind'], 'The value of each unit.')}"
        yield _section(f"gate-{it['name'].split()[-1]}", f"Units: {it['name']}", how, heat={**it, "orders": orders})
    if not row.pictures["gates"]:
        yield _section("gates", "Units", "One row per unit, over time.", none="The gates of this cell are not known.")


def _points(row: RowResult, diagnosis: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("points", {})
    how = (
        "The states in the plane in which they vary most. With the input held at its mean, a network rests at fixed "
        "points (stable: filled, unstable: open) and lingers at slow points (diamonds)."
    )
    base = _section("points", "States and fixed points", how, none=_empty(it))
    if not base["none"]:
        base["by_sample"] = [[_path(path, number, index) for index, (number, path) in enumerate(
            zip(diagnosis.samples, it["paths"], strict=True))]] + [
            [_path(path, number, index)]
            for index, (number, path) in enumerate(zip(diagnosis.samples, it["paths"], strict=True))
        ]  # fmt: skip
        base["traces"] = [
            {
                "type": "scatter", "mode": "markers", "colour": 4, "name": f"{point['kind']} {number + 1}",
                "point": True, "x": [place[0]], "y": [place[1]], "open": not point["stable"],
                "slow": point["kind"] == "slow",
                "text": [f"{'stable' if point['stable'] else 'unstable'}, |λ| = {math.hypot(*point['modes'][0]):.3f}"],
                "hovertemplate": f"{point['kind']} point {number + 1}: %{{text}}",
            }
            for number, (point, place) in enumerate(zip(it["points"], it["places"], strict=True))
        ]  # fmt: skip
        first, second = (100 * share for share in it["share"])
        base["layout"] = _axes(f"component 1 ({first:.0f}% of the variance)", f"component 2 ({second:.0f}%)")
        base["table"] = {
            "caption": f"From {it['starts']} visited states; the last column says how many of them led here."
            if it["points"]
            else f"No fixed point and no slow point was found from {it['starts']} visited states.",
            "head": ["point", "kind", "largest eigenvalues", "time constants (steps)", "starts"],
            "rows": [
                [
                    str(number + 1),
                    f"{point['kind']}, {'stable' if point['stable'] else 'unstable'}",
                    ", ".join(_complex(mode) for mode in point["modes"][:3]),
                    ", ".join(_constant(tau) for tau in point["time_constants"][:3]),
                    str(point["found"]),
                ]
                for number, point in enumerate(it["points"])
            ],
        }
    yield base


def _templates(row: RowResult, diagnosis: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("templates")
    if it is None:
        return
    exact = not it.get("none") and it["exact"]
    how = (
        "How each answer changes with each input of a sequence: "
        + ("the affine map that the network is here." if exact else "to first order, at this sequence.")
        + " Steps in the grey do not matter for the answer. Choose a sequence above."
    )
    base = _section("templates", "Templates", how, none=it.get("none"))
    if not base["none"]:
        base["by_sample"] = [[_template(it, sample)] for sample in (it["samples"][0], *it["samples"])]
        base["layout"] = _axes("step", "")
        base["tall"] = 16 * len(it["samples"][0]["slopes"]) * it["features"]
    yield base


def _template(it: dict[str, Any], sample: dict[str, Any]) -> dict[str, Any]:
    columns = len(sample["slopes"][0][0])
    steps = [1 + round(i * it["steps"] / columns) for i in range(columns)]
    named = [
        (f"answer {c + 1}, feature {f + 1}", line)
        for c, one in enumerate(sample["slopes"])
        for f, line in enumerate(one)
    ]
    return {
        "type": "heatmap", "x": steps, "y": [name for name, _ in named], "z": [line for _, line in named],
        "diverging": True, "hovertemplate": "step %{x}, %{y}: %{z:.3g}<extra></extra>",
    }  # fmt: skip


def _regions(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("regions", {})
    how = (
        "In how many regions of the input space, each with an affine map of its own, these sequences are after each "
        "step. When the line reaches the number of sequences, every one has its own map."
    )
    base = _section("regions", "Partitions visited through time", how, none=_empty(it))
    if not base["none"]:
        steps = list(range(1, len(it["counts"]) + 1))
        base["traces"] = [_line("regions", steps, it["counts"], 0, hovertemplate="step %{x}: %{y} regions")]
        base["layout"] = _axes("step", f"regions of {it['sequences']} sequences")
    yield base


def _trees(row: RowResult, _: Diagnosis) -> Iterator[Section]:
    it = row.pictures.get("trees")
    if it is None or "none" in it:
        return
    yield _section(
        "trees",
        "Most common trees",
        f"The formulas that the cell grows for its next state, over {it['total']} steps of a few sequences: "
        f"{it['different']} different ones.",
        table={
            "caption": "",
            "head": ["share", "tree"],
            "rows": [[f"{100 * one['share']:.1f}%", one["tree"]] for one in it["trees"]],
        },
    )


def _curves(diagnosis: Diagnosis) -> Section:
    entries = diagnosis.curves
    updates = [entry["update"] for entry in entries]
    splits = [name for name, scores in entries[-1].items() if isinstance(scores, dict)]
    traces = [_line("training loss", updates, [entry.get("train_loss") for entry in entries], 0)]
    for number, name in enumerate(splits):
        losses = [(entry.get(name) or {}).get("loss") for entry in entries]
        traces.append(_line(f"{name} loss", updates, losses, number + 1))
    norms = [entry.get("gradient_norm") for entry in entries]
    traces.append(_line("gradient norm", updates, norms, 4, dash="dot"))
    for trace in traces:
        trace["hovertemplate"] = "update %{x}: %{y:.4g}"
        if len(updates) == 1:
            trace["mode"] = "markers"
    how = "Losses and the size of the gradient over the updates. Jumps mean that the learning rate is too high."
    layout = _axes("update", "", log=True)
    shown = [value for trace in traces for value in trace["y"] if value]
    if shown and max(shown) < 1e3 * min(shown):
        layout["yaxis"]["dtick"] = "D2"  # 1, 2 and 5 in each decade
    return _section("curves", "Training", how, traces=traces, layout=layout)


_ROW = (_reach, _contraction, _lyapunov, _norms, _gates, _spectrum, _points, _templates, _regions, _trees)


def _path(path: list[list[float]], number: int, colour: int) -> dict[str, Any]:
    return _line(
        f"sequence {number}",
        [p[0] for p in path],
        [p[1] for p in path],
        colour,
        thin=True,
        hovertemplate="%{x:.3g}, %{y:.3g}",
    )


def _cleaned(values: list[Any], log: bool) -> list[Any]:
    return [value if value else None for value in values] if log else values


def _number(value: Any) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def _complex(mode: list[float]) -> str:
    return f"{mode[0]:.3g}" if abs(mode[1]) < 1e-9 else f"{mode[0]:.3g}{mode[1]:+.3g}i"


def _constant(tau: float | None) -> str:
    return "∞" if tau is None else f"{tau:.3g}" if tau >= 0 else f"grows in {-tau:.3g}"
