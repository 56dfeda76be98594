"""docs/choose.md: beside each answer what was measured, from studies, benchmarks and scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import holdfast
from website.claims import OVER_5000_STEPS
from website.generated import filled

__all__ = ["LAYERS", "Measured", "choose_page"]

# A layer: its row in the comparison of cells, and in the report of the scan if it is timed there.
LAYERS = {
    "RNN": ("rnn", "RNN tanh"),
    "FastRNN": ("fastrnn", "FastRNN"),
    "FastGRNN": ("fastgrnn", "FastGRNN"),
    "SGORNN": ("sgornn", "SGORNN, 14 rotations"),
    "VPRNN": ("vprnn", "VPRNN, 14 rotations"),
    "ExpRNN": ("exprnn", "ExpRNN"),
    "ScoRNN": ("scornn", "ScoRNN"),
    "URNN": ("urnn", "URNN, 64 complex units"),
    "EUNN": ("eunn", "EUNN, 64 complex units, capacity 2"),
    "GORU": ("goru", "GORU, capacity 2"),
    "LSTM": ("lstm", "LSTM"),
    "CLSTM": ("c-lstm", "CLSTM, 150 filters"),
    "GRU": ("gru", "GRU, PyTorch's"),
    "IndRNN": ("indrnn", "IndRNN"),
    "CoRNN": ("cornn", "CoRNN"),
    "LEM": ("lem", "LEM"),
    "AntisymmetricRNN": ("antisymmetric", "AntisymmetricRNN"),
    "MinGRU": ("mingru", "MinGRU"),
    "MinLSTM": ("minlstm", "MinLSTM"),
    "LinearRNN": ("linear", "LinearRNN"),
    "RRNN": ("rrnn", None),
    "RRNNGRU": ("rrnn-gru", None),
}
SEARCHED = {"RRNN", "RRNNGRU"}  # inputs as wide as the state
FEW = ("MinGRU", "GRU", "LEM", "LSTM", "SGORNN")  # shown beside a memory of few numbers over hundreds of steps
FAR = ("ScoRNN", "VPRNN", "GRU", "LSTM", "SGORNN")  # beside a memory of all inputs
SCORE = "score ± deviation (seeds)"


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the page stands on."""

    outcomes: Mapping[tuple[str, str], Any]  # by study and claim
    report: Callable[[str], Any]  # the newest report of a benchmark
    scores: Mapping[str, Any]  # results/sequences/scores.json, by set
    table: Callable[..., str]

    def claim(self, study: str, *texts: str, which: int = 0) -> str:
        """One side of a claim, the first of these that was run, with its seeds and a link."""
        found = (self.outcomes[study, text] for text in texts)
        it = next((one for one in found if one.status != "not run"), None)
        if it is None:
            return "not run"
        seeds = f"{it.seeds} seed{'' if it.seeds == '1' else 's'}"
        return f"{it.ours.split(' against ')[which]} ({seeds}, [report](../{it.report.as_posix()}))"

    def compared(self, task: str, layer: str, column: str = SCORE) -> str:
        """A cell of the comparison, with its seeds if they are not three; "" if it was not run there."""
        report = self.report("cells")
        heading = next((it for it in report.sections if it.startswith(task)), None)
        try:
            found = report.cell(heading, LAYERS[layer][0], column) if heading else ""
        except StopIteration:
            return ""
        return found.removesuffix(" (3)").replace("(1)", "(1 seed)").replace("(2)", "(2 seeds)")

    def speed(self, row: str | None) -> str:
        """Milliseconds of a row of the scan's report, and their share of PyTorch's; "" if there is no such row."""
        scan = self.report("scan")
        for heading, share, whose in (("", "of LSTM", "of LSTM"), ("Layers", "ratio", "of Conv1d and LSTM")):
            for found in scan.rows(heading) if heading in scan.sections else ():
                if next(iter(found.values())) == row:
                    return f"{found['ms']} ms, {found[share]} {whose}"
        return ""


def choose_page(it: Measured) -> str:
    """The page with its blocks renewed."""
    return filled(
        "docs/choose.md",
        {
            "own": _own(it),
            "proof": _proof(it),
            "long": _long(it),
            "small": _small(it),
            "text": _text(it),
            "all": _all(it),
        },
    )


def _own(it: Measured) -> str:
    columns = ("automatic", "reservoir", "nearest neighbour", "ridge on the raw series", "plain GRU", "MiniRocket")
    rows = [row for row in it.scores.values() if not row["regression"] and all(name in row for name in columns)]
    means = [f"{sum(sum(row[name]) / len(row[name]) for row in rows) / len(rows):.3f}" for name in columns]
    return (
        f"Mean test accuracy on {len(rows)} public sets with classes, 5 minutes of computing for each:\n\n"
        + it.table(columns, [means])
    )


def _proof(it: Measured) -> str:
    scan, spline = it.report("scan"), it.report("spline")
    stable = "the stable model's test perplexity is no higher than the unconstrained one's"
    pieces = spline.cell("", "`affine_piece`, A whole", "of a forward and backward pass")
    rows = [
        [
            "gradients cannot grow exponentially with the length",
            '`SGORNN` with `ScalarGates(clip="2alpha")`',
            "addition, T = 5,000: error "
            + it.claim("s3/addition", *OVER_5000_STEPS)
            + "; LSTM "
            + it.claim("s3/addition", "LSTM stays at the baseline at T = 5000"),
        ],
        [
            "the network forgets at a known rate, and a window of k inputs may replace it",
            "`RNN`, `SGORNN`, `LSTM` or `GRU`, projected with `project_` or `Projected`; then `certificate` and "
            "`truncate`",
            f"WikiText-2, reduced: perplexity {it.claim('s4/wikitext2', stable)} with the bound, "
            f"{it.claim('s4/wikitext2', stable, which=1)} without",
        ],
        [
            "what the network computes, region by region",
            "`RNN`, `FastRNN` or `SGORNN` with ReLU; then `affine_piece`",
            f"the map of one input costs {pieces} of a forward and backward pass "
            f"([report](../{spline.path.as_posix()}))",
        ],
        [
            "the same numbers as PyTorch",
            "`LSTM` or `GRU`, with `from_torch`",
            f"{scan.cell('', 'LSTM', 'of LSTM')} and {scan.cell('', LAYERS['GRU'][1], 'of GRU')} of the time of "
            f"PyTorch's ([report](../{scan.path.as_posix()}))",
        ],
    ]
    return it.table(["what must be proved", "use", "measured"], rows)


def _long(it: Measured) -> str:
    def told(task: str, what: str, layers: Sequence[str]) -> str:
        parts = []
        for layer in layers:
            score, solved = it.compared(task, layer), it.compared(task, layer, "solved")
            time = it.compared(task, layer, "ms per update")
            if score:
                parts.append(f"{layer} {score}{f', solved {solved}' if solved else ''}, {time} ms")
        return f"{what}: {'; '.join(parts)}" if parts else "not run"

    horizon = '`SGORNN` with `gates=ScalarGates(clip="2alpha", horizon=T)`'
    far = f"addition, T = 5,000, with the gates that it starts with: error {it.claim('s3/addition', *OVER_5000_STEPS)}"
    rows = [
        [
            "tens",
            "`GRU` or `LSTM`",
            "their gates learn what to keep, and they are the usual reference",
            told("HAR", "HAR, accuracy", ("GRU", "LSTM", "SGORNN")),
        ],
        [
            "hundreds: a few numbers among many, as in a sum",
            "`MinGRU` or `GRU`",
            "a gate lets the few in and keeps the others out; `MinGRU` also computes all steps at once",
            told("Addition, T = 200", "addition, T = 200, error", FEW)
            + "<br>"
            + told("Addition, T = 1,000", "addition, T = 1,000, 1,500 updates", FEW),
        ],
        [
            "hundreds: every input, in its order",
            "`ScoRNN` or `VPRNN`",
            "orthogonal matrices keep what they saw; compare a gated cell: "
            "`holdfast train --cell scornn --cell vprnn --cell gru`",
            told("Copying", "copying over 200 steps, loss", FAR) + "<br>" + told("Permuted", "permuted MNIST", FAR),
        ],
        ["thousands", horizon, "its memory spans T steps from the first update", far],
    ]
    note = "Milliseconds are CPU time of one update with 32 sequences, by models of about 5,000 parameters."
    return it.table(["steps that must be remembered", "use", "because", "measured"], rows) + f"\n\n{note}"


def _small(it: Measured) -> str:
    device, columns = it.report("device"), ("parameters", "flash", "RAM", "instructions per step", "accuracy")
    rows = [[it["network"], *(it[name] for name in columns)] for it in device.rows("") if it["weights"] == "int8"]
    return (
        "HAR-2 with weights in int8 on an emulated Cortex-M4F, bytes "
        f"([report](../{device.path.as_posix()}), short trainings, one seed):\n\n"
        + it.table(["network", *columns], rows)
    )


def _text(it: Measured) -> str:
    claims = {
        "LSTM": ("SGORNN is at most 10 above LSTM's test perplexity", 1),
        "SGORNN": ("SGORNN has a lower test perplexity than FastRNN", 0),
        "FastRNN": ("SGORNN has a lower test perplexity than FastRNN", 1),
        "VPRNN": ("SGORNN has a lower test perplexity than VPRNN", 1),
    }
    rows = [[f"`{name}`", it.claim("s3/ptb", text, which=which)] for name, (text, which) in claims.items()]
    return it.table(["Penn Treebank by word, reduced", "test perplexity"], rows)


def _all(it: Measured) -> str:
    scan, compared = it.report("scan"), it.report("cells")
    tasks = {
        "Addition, T = 200": "addition, T = 200, error",
        "Addition, T = 1,000": "addition, T = 1,000, error",
        "Copying": "copying, loss",
        "Permuted MNIST": "permuted MNIST, accuracy",
        "HAR": "HAR, accuracy",
    }
    tasks = {task: what for task, what in tasks.items() if any(it.startswith(task) for it in compared.sections)}
    rows = []
    for name, (_, row) in LAYERS.items():
        made = None if name in SEARCHED else getattr(holdfast, name)(2, 128)
        size = "" if made is None else f"{sum(weight.numel() for weight in made.parameters()):,}"
        rows.append([f"`{name}`", size, it.speed(row), *(it.compared(task, name) for task in tasks)])
    note = (
        "Speed: forward and backward, T = 500, B = 64, H = 128, as a share of `torch.nn.LSTM`'s time, from the [scan "
        f"benchmark](../{scan.path.as_posix()}). Scores: models of about 5,000 parameters with the settings that a "
        "cell starts with, three seeds where no other number stands, from the "
        f"[comparison](../{compared.path.as_posix()}), which has updates to solve a task, time and memory too ([all of "
        "it](comparison.md)). A constant answer has an error of 0.167 on the addition problem. [Results](results.md) "
        "has the claims of the studies, [speed](speed.md) all benchmarks."
    )
    return (
        it.table(["layer", "parameters, 2 inputs, H = 128", "forward + backward", *tasks.values()], rows)
        + f"\n\n{note}"
    )
