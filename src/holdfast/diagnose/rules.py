"""The rules: when a measure is a fault, what to say, and what to do about it. They are data.

A rule holds if all its conditions hold for the measures of one row. A condition on a measure that is missing does not
hold. A rule that explains another removes it: a cause is worth more than its symptoms. Of several rows the one whose
evidence is furthest beyond the threshold is named.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

__all__ = ["MOST", "RULES", "Condition", "Finding", "Rule", "findings"]

MOST = 5  # findings that a person can take in


@dataclasses.dataclass(frozen=True)
class Condition:
    """A measure beyond a threshold.

    Example:
        >>> Condition("growth", ">", 100.0).holds({"growth": 250.0}), Condition("growth", ">", 100.0).holds({})
        (True, False)
    """

    measure: str
    relation: Literal["<", ">"]
    threshold: float

    def holds(self, measures: Mapping[str, Any]) -> bool:
        value = measures.get(self.measure)
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return value < self.threshold if self.relation == "<" else value > self.threshold

    def __str__(self) -> str:
        return f"{self.measure} {self.relation} {self.threshold:g}"


@dataclasses.dataclass(frozen=True)
class Rule:
    """A fault, as data.

    Args:
        name, title: for code and for people.
        weight: the order of findings.
        when: conditions that must all hold; the first is the evidence.
        sentence, advice: with measures in braces.
        code: Python that follows the advice, by the kind of the cell ("lstm", "gru", "form", "any") or the cause; the
            model is called ``model`` and the data ``xs``.
        flags: the same for ``holdfast train``; empty if there is no such option.
        explains: names of rules that this one makes redundant.

    Example:
        >>> rule = next(rule for rule in RULES if rule.name == "exploding")
        >>> [str(condition) for condition in rule.when]
        ['growth > 100']
    """

    name: str
    title: str
    weight: int
    when: tuple[Condition, ...]
    sentence: str
    advice: str
    code: Mapping[str, str]
    flags: str = ""
    explains: tuple[str, ...] = ()

    def holds(self, measures: Mapping[str, Any]) -> bool:
        """Whether all conditions hold."""
        return all(condition.holds(measures) for condition in self.when)

    def excess(self, measures: Mapping[str, Any]) -> float:
        """How far the evidence is beyond its threshold, as a ratio of logarithmic size."""
        first = self.when[0]
        ratio = (abs(measures[first.measure]) + 1e-300) / (abs(first.threshold) + 1e-300)
        return abs(math.log(ratio)) if math.isfinite(ratio) else math.inf


@dataclasses.dataclass(frozen=True)
class Finding:
    """What is wrong, how one can tell, and what to do.

    Args:
        rule, title: which rule.
        sentence: what is wrong, in one sentence.
        evidence: the number, with the threshold.
        advice, code, flags: what to do.
        row: which layer.

    Example:
        >>> Finding("exploding", "Exploding gradients", "...", "growth = 250 > 100", "...", "clip = 1.0").flags
        ''
    """

    rule: str
    title: str
    sentence: str
    evidence: str
    advice: str
    code: str
    flags: str = ""
    row: str = ""


_SHRINK = """with torch.no_grad():  # smaller recurrent weights
    for name, weight in {here}.named_parameters():
        if "weight_hh" in name:
            weight.mul_({shrink:.2g})
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # in training, before optimiser.step()"""

_PROJECT = """{here} = holdfast.stability.project_({ours}, rate=0.99)  # every step now contracts
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # in training, before optimiser.step()"""

_GATES = """{here} = holdfast.SGORNN(
    {input_size}, {hidden_size}, {layers}, batch_first={batch_first},
    gates=holdfast.ScalarGates(clip="2alpha", horizon={needed}),
)  # remembers about {needed} steps from the start"""

_KEEP = """with torch.no_grad():  # gates that keep the state for about {needed} steps
    for name, bias in {here}.named_parameters():
        if name.endswith("bias") or "bias_ih" in name:
            bias.chunk({chunks})[1].fill_({keep:.3g})"""

_LONGER = {"lstm": _KEEP, "gru": _KEEP, "any": _GATES}

_RESET = """{here}.reset_parameters()  # then train with a lower learning rate, and clip=1.0"""

_RESCALE = {
    "data": "xs = (xs - xs.mean()) / xs.std()",
    "any": """with torch.no_grad():  # a start of the usual size
    for name, weight in {here}.named_parameters():
        if "weight_ih" in name:
            torch.nn.init.xavier_uniform_(weight)""",
}

RULES: tuple[Rule, ...] = (
    Rule(
        "nonfinite",
        "Non-finite values",
        100,
        (Condition("nonfinite", ">", 0),),
        "Not finite{at_step}: {nonfinite_where}.",
        "{nonfinite_advice}",
        {
            "data": "keep = xs.isfinite().flatten(2).all(dim=2).all(dim={time_dim})\n"
            "xs = xs[{keep_index}]  # without the sequences that have missing values",
            "weight": "for module in model.modules():  # or load the last good checkpoint\n"
            '    if hasattr(module, "reset_parameters"):\n'
            "        module.reset_parameters()",
            "form": _PROJECT,
            "any": _SHRINK,
        },
        "{nonfinite_flags}",
        ("exploding", "large_scale", "learning_rate", "saturated", "vanishing"),
    ),
    Rule(
        "exploding",
        "Exploding gradients",
        90,
        (Condition("growth", ">", 100.0),),
        "In {row}, gradients grow with the distance they travel: the largest is {growth:.3g} times that of the first "
        "steps.",
        "Make every step contract, or make the recurrent weights smaller, and clip the gradient.",
        {"form": _PROJECT, "any": _SHRINK},
        "--clip 1.0",
        ("initial_state", "saturated"),
    ),
    Rule(
        "learning_rate",
        "Learning rate beyond the edge",
        80,
        (Condition("lr_over_edge", ">", 1.5), Condition("step_ratio", ">", 1.0)),
        "The learning rate {lr:.3g} is {lr_over_edge:.3g} times the largest stable one, and one step raises the loss "
        "from {loss:.4g} to {loss_after:.4g}.",
        "Use a learning rate below 2 / λ_max, and a schedule that lowers it.",
        {"any": "optimiser = torch.optim.SGD(model.parameters(), lr={safe_lr:.2g})"},
        "--lr {safe_lr:.2g}",
    ),
    Rule(
        "unstable_training",
        "Unstable training",
        78,
        (Condition("loss_rise", ">", 2.0),),
        "In the log of this run, {log_trouble}.",
        "Lower the learning rate, and clip the gradient.",
        {"any": "optimiser = torch.optim.Adam(model.parameters(), lr={third_lr:.2g})  # and clip=1.0"},
        "--lr {third_lr:.2g} --clip 1.0",
    ),
    Rule(
        "large_scale",
        "The inputs enter too strongly",
        75,
        (Condition("drive", ">", 10.0),),
        "What the inputs add to the units of {row} has a size of {drive:.3g}, which is too large: it should be near 1.",
        "{scale_advice}",
        _RESCALE,
        "--set task.standardise=true",
        ("saturated", "vanishing", "short_memory", "unused", "dead_relu", "initial_state"),
    ),
    Rule(
        "small_scale",
        "The inputs enter too weakly",
        74,
        (Condition("drive", "<", 1e-4),),
        "What the inputs add to the units of {row} has a size of {drive:.3g}, which is too small: it should be near 1.",
        "{scale_advice}",
        _RESCALE,
        "--set task.standardise=true",
        ("saturated", "vanishing", "short_memory", "unused", "dead_relu", "initial_state"),
    ),
    Rule(
        "short_memory",
        "Memory shorter than the task's lag",
        72,
        (Condition("lag_share", "<", 1e-3),),
        "The task needs inputs {lag} steps back, but in {row} a gradient over {lag} steps is {lag_share:.2g} of the "
        "largest; it ends after about {memory} steps.",
        "Start with gates, or a cell, that remember that many steps.",
        _LONGER,
        "--cell sgornn --set 'cell.options.gates={{ clip = \"2alpha\", horizon = {needed} }}'",
        ("vanishing",),
    ),
    Rule(
        "vanishing",
        "Vanishing gradients",
        70,
        (Condition("coverage", "<", 0.35), Condition("steps", ">", 19)),
        "In {row}, the loss reaches only {coverage_percent:.0f}% of the {steps} steps: the gradient at all others is "
        "below 1/10,000 of its largest value.",
        "Start with gates, or a cell, that remember the whole sequence, or let the loss see more than its end.",
        _LONGER,
        "--cell sgornn --set 'cell.options.gates={{ clip = \"2alpha\", horizon = {needed} }}'",
    ),
    Rule(
        "end_only",
        "The loss sees only the end",
        65,
        (Condition("read_share", "<", 0.1), Condition("targets_every_step", ">", 0), Condition("steps", ">", 9)),
        "There is a target at every step, but the loss reads {read_steps:.0f} of {steps} steps.",
        "Take the loss over all steps.",
        {
            "classes": "def loss(answers, targets):  # over every step\n"
            "    return torch.nn.functional.cross_entropy(answers.flatten(0, 1), targets.flatten())",
            "any": "def loss(answers, targets):  # over every step\n"
            "    return torch.nn.functional.mse_loss(answers, targets)",
        },
        "",
        ("vanishing",),
    ),
    Rule(
        "dead_relu",
        "Dead ReLU units",
        60,
        (Condition("dead", ">", 0.25),),
        "{dead_percent:.0f}% of the units of {row} are 0 at every step of every sequence, and never get a gradient.",
        "Use a nonlinearity that has a slope everywhere, and a lower learning rate.",
        {
            "any": "{here} = holdfast.{layer_class}(\n"
            '    {input_size}, {hidden_size}, {layers}, batch_first={batch_first}, nonlinearity="leaky_relu"\n)'
        },
        "--set cell.options.nonlinearity=leaky_relu",
        ("unused",),
    ),
    Rule(
        "saturated",
        "Saturated gates",
        55,
        (Condition("stuck", ">", 0.5),),
        "{stuck_percent:.0f}% of the units of {stuck_gate} in {row} are saturated nearly all the time, so they pass no "
        "gradient.",
        "Start again with smaller weights and a lower learning rate, and scale the inputs to standard deviation 1.",
        {"any": _RESET},
        "--lr {third_lr:.2g} --clip 1.0",
        ("vanishing", "unused", "initial_state"),
    ),
    Rule(
        "initial_state",
        "The initial state matters",
        40,
        (Condition("start", ">", 3.0),),
        "In {row}, another initial state changes the last state {start:.3g} times as much as another input sequence "
        "does.",
        "Make the recurrence contract, or train from random initial states.",
        {
            "form": "{here} = holdfast.stability.project_({ours}, rate=0.95)  # the start is forgotten",
            "any": _SHRINK,
        },
        "--set cell.initial_state=0.1",
    ),
    Rule(
        "unused",
        "Unused units",
        30,
        (Condition("unused", ">", 0.25),),
        "{unused_percent:.0f}% of the units of {row} have almost no effect on the loss.",
        "Use a smaller layer: the units that are used do the same work.",
        {
            "any": "smaller = type({here})({input_size}, {used}, {layers}, batch_first={batch_first})\n"
            "# build the model with this layer, and its readout for {used} units"
        },
        "--hidden {used}",
    ),
)
"""Every rule, in order of weight."""


def findings(rows: Iterable[Mapping[str, Any]]) -> tuple[Finding, ...]:
    """At most five findings, in order of weight.

    Args:
        rows: the measures of every row, with ``row``, its name, and ``kind``, for the code.

    Example:
        >>> findings([{"row": "layer 1", "kind": "any", "growth": 1.0}])
        ()
    """
    rows, found = list(rows), []
    for rule in sorted(RULES, key=lambda it: -it.weight):
        holding = [measures for measures in rows if rule.holds(measures)]
        if holding:
            found.append((rule, max(holding, key=rule.excess)))
    explained = {name for rule, _ in found for name in rule.explains}
    return tuple(_finding(rule, measures) for rule, measures in found if rule.name not in explained)[:MOST]


def _finding(rule: Rule, measures: Mapping[str, Any]) -> Finding:
    first = rule.when[0]
    kinds = (str(measures.get(f"{rule.name}_cause")), str(measures.get("kind")), "any")
    code = next(rule.code[kind] for kind in kinds if kind in rule.code)
    value = measures[first.measure]
    return Finding(
        rule.name,
        rule.title,
        rule.sentence.format(**measures),
        f"{first.measure} = {value:.4g}; a fault if {first.relation} {first.threshold:g}",
        rule.advice.format(**measures),
        code.format(**measures),
        rule.flags.format(**measures),
        str(measures.get("row", "")),
    )
