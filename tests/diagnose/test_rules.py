"""Each rule fires on its fault, not on the others'; healthy networks have no finding; what is advised helps."""

import pytest
import torch

import holdfast
from helpers.faults import FAULTS, Tagger, healthy, nonfinite_data, overflow
from holdfast.diagnose import RULES, diagnose
from holdfast.diagnose.rules import MOST, findings

OF_RUNS = {"unstable_training"}  # its evidence is the log of a run: tests/diagnose/test_of_run.py


def test_every_rule_has_a_network_with_its_fault():
    assert set(FAULTS) | OF_RUNS == {rule.name for rule in RULES}


@pytest.fixture(scope="module", params=FAULTS)
def faulty(request):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    case = FAULTS[request.param]()
    return request.param, case, case.diagnose()


def test_a_fault_is_found_and_no_other(faulty):
    """For each network with one fault, exactly one rule fires: its own. So no rule fires on the others' faults."""
    name, _, diagnosis = faulty
    assert [finding.rule for finding in diagnosis.findings] == [name]


def test_what_is_advised_runs_and_the_finding_disappears(faulty):
    """The code of the finding, run as it is printed, on the network with the fault."""
    name, case, diagnosis = faulty
    (finding,) = diagnosis.findings
    names = {"model": case.model, "xs": case.xs, "loss": case.loss, "torch": torch, "holdfast": holdfast}
    torch.manual_seed(1)
    exec(finding.code, names)
    model, more = names["model"], dict(case.more)
    if name == "learning_rate":
        more["lr"] = names["optimiser"].param_groups[0]["lr"]
    if name == "unused":
        model = Tagger(names["smaller"], names["smaller"].hidden_size)
    after = diagnose(model, names["xs"], case.targets, names["loss"], **more)
    assert name not in [finding.rule for finding in after.findings]


def test_a_healthy_network_has_no_finding():
    """False alarms on ten networks of different cells and tasks, trained or from their usual start: none."""
    alarms, count = {}, 0
    for name, made in healthy().items():
        torch.manual_seed(0)
        count += 1
        if found := made().diagnose().findings:
            alarms[name] = [finding.rule for finding in found]
    assert count == 10
    assert not alarms


def test_missing_values_are_a_finding_that_says_where():
    """A NaN in step 8 of sequence 2: named, and the other sequences are measured. The advice leaves that one out."""
    case = nonfinite_data()
    diagnosis = case.diagnose()
    (finding,) = diagnosis.findings
    assert "step 8" in finding.sentence
    assert "sequence 2" in finding.sentence
    assert diagnosis.rows[0].measures["lyapunov"] < 0
    names = {"xs": case.xs}
    exec(finding.code, names)
    assert names["xs"].shape == (40, 5, 3)
    assert names["xs"].isfinite().all()


def test_an_overflow_names_the_step_the_operator_and_the_weight():
    """H grows 2·10⁹ times per step: float64 ends at 1.8·10³⁰⁸, so at step 34 or 35, in the product with U."""
    case = overflow()
    diagnosis = case.diagnose()
    assert diagnosis.findings[0].rule == "nonfinite"
    assert "the operator mm, which reads the weight rnn.l0.weight_hh" in diagnosis.findings[0].sentence
    step = int(diagnosis.findings[0].sentence.split("step ")[1].split(":")[0])
    assert step in (34, 35)
    assert diagnosis.rows[0].measures["steps"] == step - 1  # all that is finite is measured
    names = {"model": case.model, "torch": torch, "holdfast": holdfast}
    exec(diagnosis.findings[0].code, names)
    assert "nonfinite" not in [it.rule for it in diagnose(names["model"], case.xs, case.targets).findings]


def test_gradients_that_overflow_explode():
    """States at rest at 0, and a step that multiplies by 10²⁰: only the gradient by distance is not finite."""
    cell = holdfast.LinearCell(1, 2, bias=False)
    with torch.no_grad():
        cell.weight_hh.copy_(1e20 * torch.eye(2))
    diagnosis = diagnose(holdfast.Recurrent(cell, backend="reference"), torch.zeros(30, 2, 1))
    assert [finding.rule for finding in diagnosis.findings] == ["exploding"]
    assert "growth = inf" in diagnosis.findings[0].evidence


def test_a_weight_that_is_not_finite_is_named():
    (finding,) = FAULTS["nonfinite"]().diagnose().findings
    assert "1 of 768 values of the weight rnn.weight_hh_l0" in finding.sentence


def test_there_are_at_most_five_findings_in_order_of_weight():
    """For measures that break every rule, of which none explains another."""
    rows = [{"row": "layer 1", "kind": "any", "here": "model", "ours": "model", "shrink": 0.5, "steps": 100,
             "growth": 1e9, "lr_over_edge": 9.0, "step_ratio": 2.0, "lr": 1.0, "loss": 1.0, "loss_after": 2.0,
             "edge": 0.1, "safe_lr": 0.05, "third_lr": 0.3, "loss_rise": 5.0, "log_trouble": "it rose",
             "lag_share": 0.0, "lag": 50, "memory": 3, "needed": 50, "input_size": 1, "hidden_size": 2, "layers": 1,
             "batch_first": False, "dead": 0.5, "dead_percent": 50.0, "layer_class": "RNN", "unused": 0.5,
             "unused_percent": 50.0, "used": 1}]  # fmt: skip
    found = [it.rule for it in findings(rows)]
    assert found == ["exploding", "learning_rate", "unstable_training", "short_memory", "dead_relu"]
    assert len(found) == MOST


def test_the_layer_that_is_worst_is_named():
    """A stack whose second layer explodes."""
    rnn = torch.nn.RNN(3, 12, num_layers=2)
    torch.nn.init.orthogonal_(rnn.weight_hh_l1, gain=2.5)
    with torch.no_grad():
        rnn.weight_ih_l1.mul_(0.2)
    (finding,) = diagnose(rnn, torch.randn(40, 4, 3)).findings
    assert (finding.rule, finding.row) == ("exploding", "layer 2")
