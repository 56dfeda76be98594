"""The programs of the gallery, in small: each says something that could be false, and draws its figure."""

import numpy as np
import pytest
import torch

from helpers.scripts import script


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)  # as users have it
    monkeypatch.chdir(tmp_path)


def test_a_horizon_lets_the_gradient_reach_the_first_step(tmp_path):
    ratios = script("examples/07_gradients.py").main(steps=120)
    assert ratios["SGORNN, horizon 120"] > 0.05
    assert ratios["RNN, tanh"] < 1e-6
    assert (tmp_path / "gradients.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_forecast_is_better_than_last_year(tmp_path):
    assert script("examples/08_forecast.py").main(months=84) < 1
    assert (tmp_path / "forecast.png").stat().st_size > 10_000


def test_digits_are_read_and_drawn(tmp_path):
    """Better than chance, one in ten, after a few updates."""
    assert script("examples/09_digits.py").main(updates=60) > 0.25
    assert (tmp_path / "templates.png").stat().st_size > 10_000


def test_the_compiled_loop_gives_the_numbers_of_the_plain_one(capsys):
    assert script("examples/10_compiled.py").main(steps=50) < 1e-4
    assert "tanh(" in capsys.readouterr().out


def test_no_window_errs_more_than_proved():
    proved, seen = script("examples/11_window.py").main(longest=20)
    assert all(0 < error <= bound for error, bound in zip(seen, proved, strict=True))
    assert proved[-1] < proved[0] / 20


def test_the_two_starts_are_trained(tmp_path):
    ends = script("examples/12_horizon.py").main(updates=2)
    assert len(ends) == 2
    assert all(0 < end < 10 for end in ends.values())
    assert (tmp_path / "horizon.png").stat().st_size > 10_000


def test_made_up_signals_get_the_classes_of_python_on_the_device(tmp_path, monkeypatch, capsys):
    """Without the data the program says so; without the emulator it says what to install."""
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "none"))
    program = script("examples/13_device.py")
    if not program.qemu.missing_tools():
        found = program.main(updates=3, sequences=2)
        np.testing.assert_allclose(found["float32"].outputs, found["python"], rtol=1e-3, atol=1e-3)
        assert "No HAR data" in capsys.readouterr().out
        assert (tmp_path / "device.png").stat().st_size > 10_000
    monkeypatch.setattr(program.qemu, "missing_tools", lambda: ["qemu-system-arm"])
    assert program.main() == {}
    assert "Install: apt-get" in capsys.readouterr().out


def test_the_advice_of_a_diagnosis_removes_its_finding(tmp_path, capsys):
    (_, before), (_, after) = script("examples/14_diagnosis.py").main(updates=1).values()
    assert "vanishing" in before
    assert "vanishing" not in after
    assert (tmp_path / "diagnosis.png").stat().st_size > 10_000


def test_a_grown_layer_has_the_longer_memory_and_the_same_other_weights():
    """α shrinks by the factor, β = 1 - 2α of the start, and a network that only adds up answers as before."""
    program = script("examples/15_five_thousand_steps.py")
    rnn, readout = program.layer(100), torch.nn.Linear(program.UNITS, 1)
    weight = readout.weight.detach().clone()
    longer = program.grown(rnn, readout, 50.0)
    torch.testing.assert_close(longer.l0.gates()[0].item(), 1 / 5000, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(readout.weight, 50 * weight, rtol=1e-3, atol=0.0)
    torch.testing.assert_close(longer.l0.weight_ih, rnn.l0.weight_ih)
