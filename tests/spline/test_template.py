"""Templates, and their pictures."""

import pytest
import torch

from helpers.spline_models import INPUTS, build
from holdfast.errors import SettingError, ShapeError
from holdfast.spline import affine_piece, plot_image_templates, plot_neighbours, plot_text_templates, templates


def test_templates_are_the_rows_of_the_slope_and_add_up_to_the_answer():
    net, x = build("rnn", layers=2), torch.randn(6, INPUTS)
    item, piece = templates(net, x), affine_piece(net, x)
    assert torch.equal(item.rows, piece.slope)
    torch.testing.assert_close(item.outputs, net(x.unsqueeze(1))[0])
    torch.testing.assert_close(item.per_step().sum(1), item.products)
    assert item.predicted == net(x.unsqueeze(1)).argmax().item()


def test_without_biases_the_winner_is_the_answer():
    """B = 0, so the best fitting template decides: the matched filter of S5 §5."""
    net, x = build("rnn"), torch.randn(6, INPUTS)
    with torch.no_grad():
        net.rnn.l0.bias.zero_()
        net.readout.bias.zero_()
    item = templates(net, x)
    assert not item.offset.any()
    assert item.winner == item.predicted


def test_the_templates_of_words_are_drawn_over_the_words(tmp_path):
    net, words = build("rnn", words=7, outputs=2), ["a", "fine", "film"]
    item = templates(net, torch.tensor([1, 5, 2]))
    figure = plot_text_templates(item, words, label=1, classes=("negative", "positive"))
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == words
    titles = [axes.get_title() for axes in figure.axes[:2]]
    assert titles == [
        f"{name}: {value:.3f}" for name, value in zip(("negative", "positive"), item.products, strict=True)
    ]
    figure.savefig(tmp_path / "words.png")
    assert (tmp_path / "words.png").stat().st_size > 5_000
    with pytest.raises(ShapeError, match="a word for each of 3 steps"):
        plot_text_templates(item, words[:2])


def test_permuted_pixels_go_back_to_their_places():
    from holdfast.spline import Templates

    order = torch.tensor([2, 0, 3, 1])
    image = torch.arange(4.0)
    read = image[order]
    item = Templates(read.view(1, 4, 1), torch.zeros(1), torch.zeros(1), read.view(4, 1))
    figure = plot_image_templates([item], (2, 2), order=order)
    for axes in figure.axes:
        assert axes.images[0].get_array().tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_pictures_of_the_wrong_size_are_refused():
    with pytest.raises(ShapeError, match="expects 6 pixels, got 4"):
        plot_neighbours(torch.rand(3, 4), [0], torch.tensor([[1]]), torch.tensor([[2]]), (2, 3))


def test_a_model_that_answers_at_every_step_has_no_templates():
    with pytest.raises(SettingError, match="at every step"):
        templates(build("rnn", every_step=True), torch.randn(5, INPUTS))
