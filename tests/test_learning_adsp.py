"""The workloads of ADSP: CNN, RNN and kernel machine, on small made-up data sets."""

from dataclasses import replace

import numpy as np
import pytest

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.altered import Augmentation, Dropout
from cbdybw.learning.kernel_machine import kernel
from cbdybw.storage.datasets import Dataset

IMAGES = {"image_shape": [32, 32, 3], "pca": None}


def images() -> Dataset:
    rng = np.random.default_rng(0)
    x = (rng.integers(0, 256, (150, 3072)) / np.float32(255)).astype(np.float32)
    y = rng.integers(0, 10, 150)
    parts = [np.arange(0, 100, 2), np.arange(1, 100, 2)]
    return Dataset("cifar10", x[:100], y[:100], x[100:], y[100:], parts, 10, IMAGES)


def table(name: str, features: int) -> Dataset:
    """Points of a curve with noise; the class says where on the curve."""
    rng = np.random.default_rng(1)
    t = rng.random(700)
    x = 0.5 + 0.4 * np.sin(3 * t[:, None] + np.arange(features)) + rng.normal(0, 0.02, (700, 1))
    x, y = x.astype(np.float32), (10 * t).astype(int)
    parts = [np.arange(0, 600, 2), np.arange(1, 600, 2)]
    return Dataset(name, x[:600], y[:600], x[600:], y[600:], parts, 10, {"pca": None})


@pytest.fixture(scope="module")
def cnn():
    return workloads.build("cnn", images(), 8, seed=1)


@pytest.fixture(scope="module")
def rnn():
    return workloads.build("rnn", table("rail", 10), 32, seed=1)


@pytest.fixture(scope="module")
def svm():
    return workloads.build("svm", table("chiller", 8), 16, seed=1)


# --- models --------------------------------------------------------------------------------------


def test_the_cnn_has_as_many_parameters_as_the_paper_says(cnn):
    assert cnn.dim == 148_298


def test_the_rnn_is_an_lstm_of_128_and_384_rectified_units(rnn):
    assert rnn.dim == 4 * 128 * (1 + 128 + 1) + 128 * 384 + 384 + 384 * 10 + 10


def test_local_response_is_tensorflows_in_value_and_slope():
    from cbdybw.learning.flat import tf
    from cbdybw.learning.models import LocalResponse

    rng = np.random.default_rng(2)
    # Large enough that the denominator is far from 1.
    x = tf.constant(rng.normal(0, 60, (2, 3, 3, 64)), tf.float32)
    dy = tf.constant(rng.normal(size=(2, 3, 3, 64)), tf.float32)
    ours, theirs = [], []
    for layer, out in (
        (LocalResponse(), ours),
        (lambda x: tf.nn.lrn(x, 4, 1.0, 0.001 / 9, 0.75), theirs),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        out += [y.numpy(), tape.gradient(y, x, dy).numpy()]
    assert np.abs(ours[0]).max() < 0.5 * np.abs(x.numpy()).max()
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-4, atol=1e-6)


def test_the_gradient_of_the_cnn_is_the_slope_of_its_total_loss_in_every_variable(cnn):
    """A central difference along the gradient of each variable, step 0.003.

    Rounding of a loss near 3 is some 3e-7, which is 1e-4 of a difference; kinks of ReLU and
    pooling are what needs the tolerance.
    """
    model = cnn._model
    w = cnn.initial(np.random.default_rng(4))
    x, y = cnn.samples(cnn.batch(1, 3))
    g = cnn.gradient(w, cnn.batch(1, 3))
    for variable in np.split(np.arange(cnn.dim), np.cumsum(model._sizes)[:-1]):
        norm = np.linalg.norm(g[variable])
        u = np.zeros_like(g)
        u[variable] = g[variable] / norm
        up, down = (model.evaluate(w + np.float32(h) * u, x, y)[0] for h in (0.003, -0.003))
        assert norm > 1e-3
        assert (up - down) / 0.006 == pytest.approx(norm, rel=1e-2, abs=2e-4)


def loss_of_the_rnn(parts: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """In float64, gates in the order input, forget, cell, output."""
    inputs, recurrent, bias, weights, shift, last, offset = parts
    hidden = cell = np.zeros((len(x), 128))
    for t in range(10):
        z = x[:, t, None] * inputs + hidden @ recurrent + bias
        i, f, o = (1 / (1 + np.exp(-z[:, 128 * gate : 128 * (gate + 1)])) for gate in (0, 1, 3))
        cell = f * cell + i * np.tanh(z[:, 256:384])
        hidden = o * np.tanh(cell)
    logits = np.maximum(hidden @ weights + shift, 0) * x[:, 10:] @ last + offset
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y])


def test_the_gradient_of_the_rnn_is_the_slope_of_an_lstm_written_out(rnn):
    """Step 1e-6 in float64, so that next to no ReLU changes its side."""
    rng = np.random.default_rng(4)
    w = (rnn.initial(rng) + rng.normal(0, 0.1, rnn.dim)).astype(np.float32)
    batch = rnn.batch(1, 3)
    x, y = rnn.samples(batch)
    g = rnn.gradient(w, batch)
    ends, shapes = np.cumsum(rnn._model._sizes)[:-1], rnn._model._shapes

    def loss(w: np.ndarray) -> float:
        parts = [part.reshape(s) for part, s in zip(np.split(w, ends), shapes, strict=True)]
        return loss_of_the_rnn(parts, x.astype(float), y)

    assert rnn._model.evaluate(w, x, y)[0] == pytest.approx(loss(w.astype(float)), rel=1e-6)
    for variable in np.split(np.arange(rnn.dim), ends):
        norm = np.linalg.norm(g[variable])
        u = np.zeros(rnn.dim)
        u[variable] = g[variable] / norm
        up, down = (loss(w.astype(float) + h * u) for h in (1e-6, -1e-6))
        assert (up - down) / 2e-6 == pytest.approx(norm, rel=1e-4)


def test_l2_is_on_the_weights_of_the_cnn_and_not_on_its_biases(cnn):
    """Where all logits are equal the cross-entropy is log(10) and moves no convolution."""
    sizes = cnn._model._sizes
    parts = [np.full(n, 0.01 * (i + 1), np.float32) for i, n in enumerate(sizes)]
    parts[4][:] = 0  # the weights of the logits
    w = np.concatenate(parts)
    squares = sum(float(np.sum(part.astype(float) ** 2)) for part in parts[::2])
    expected = np.log(10) + 0.002 * squares
    assert cnn.held_out_loss(w) == pytest.approx(expected, rel=1e-6)
    assert cnn.evaluate(w).loss == pytest.approx(expected, rel=1e-6)
    g = np.split(cnn.gradient(w, cnn.batch(0, 0)), np.cumsum(sizes)[:-1])
    np.testing.assert_allclose(g[0], 0.004 * parts[0], rtol=1e-5)
    np.testing.assert_array_equal(g[1], 0)


# --- what chance decides -------------------------------------------------------------------------


def test_a_mirrored_image_has_its_columns_in_reverse_and_nothing_else():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3))
    x = (pixels / np.float32(255)).astype(np.float32).reshape(2, -1)
    nothing = np.zeros(2, np.float32), np.ones(2, np.float32)
    both = Augmentation().alter(x, (np.array([True, False]), *nothing))
    plain = Augmentation().leave(x)
    np.testing.assert_allclose(both[0], plain[0, :, ::-1], rtol=0, atol=2e-6)
    np.testing.assert_allclose(both[1], plain[1], rtol=0, atol=2e-6)
    assert np.abs(both[0] - plain[0]).max() > 1


def test_a_standardised_image_has_mean_0_and_variance_1_and_a_plain_one_is_0():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(float)
    pixels[1] = 77
    x = (pixels.reshape(2, -1) / 255).astype(np.float32)
    ours = Augmentation().leave(x)
    expected = (pixels[0] - pixels[0].mean()) / pixels[0].std()
    np.testing.assert_allclose(ours[0], expected, rtol=0, atol=2e-6)
    # 77 less its mean is nothing but rounding, which 1/√3072 in the divisor keeps small.
    np.testing.assert_allclose(ours[1], 0, atol=1e-2)


def test_contrast_stretches_each_channel_about_its_mean_and_brightness_cancels():
    pixels = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3)).astype(float)
    x = (pixels.reshape(1, -1) / 255).astype(np.float32)
    mean = pixels.mean(axis=(1, 2), keepdims=True)
    stretched = (pixels - mean) * 1.7 + mean
    expected = (stretched - stretched.mean()) / stretched.std()
    for brightness in (0, -63, 63):
        drawn = np.array([False]), np.float32([brightness]), np.float32([1.7])
        ours = Augmentation().alter(x, drawn)
        np.testing.assert_allclose(ours, expected, rtol=0, atol=5e-6)


def test_draws_of_an_augmentation_fill_their_ranges():
    mirrored, brightness, contrast = Augmentation().draw(4000, np.random.default_rng(0))
    assert mirrored.mean() == pytest.approx(0.5, abs=0.03)
    assert (brightness.min(), brightness.max()) == pytest.approx((-63, 63), abs=0.5)
    assert (contrast.min(), contrast.max()) == pytest.approx((0.2, 1.8), abs=0.01)


def test_dropout_silences_two_units_in_five_and_scales_the_others():
    dropout = Dropout(384, 0.4)
    factors = dropout.draw(100, np.random.default_rng(0))
    assert set(np.unique(factors)) == {np.float32(0), np.float32(1 / 0.6)}
    assert factors.mean() == pytest.approx(1, abs=0.02)
    x = np.ones((100, 3), np.float32)
    np.testing.assert_array_equal(dropout.alter(x, factors)[:, 3:], factors)
    np.testing.assert_array_equal(dropout.leave(x), 1)


def test_a_silenced_unit_has_no_gradient(rnn):
    w = rnn.initial(np.random.default_rng(0))
    batch = rnn.batch(0, 0, size=1)
    g = np.split(rnn.gradient(w, batch), np.cumsum(rnn._model._sizes)[:-1])
    silent = batch.drawn[0] == 0
    assert 100 < silent.sum() < 200
    assert not g[4][silent].any()  # biases of the 384 units
    assert g[4][~silent].any()


@pytest.mark.parametrize("workload", ["cnn", "rnn", "svm"])
def test_a_gradient_depends_on_rank_index_and_seed_and_not_on_what_was_asked_before(workload):
    data = {"cnn": images(), "rnn": table("rail", 10), "svm": table("chiller", 8)}[workload]
    fresh, used, other = (workloads.build(workload, data, 8, seed) for seed in (5, 5, 6))
    w = np.random.default_rng(0).normal(0, 0.1, fresh.dim).astype(np.float32)
    for k in (7, 1):
        used.gradient(w, used.batch(0, k))
    g = fresh.gradient(w, fresh.batch(1, 3))
    assert g.dtype == np.float32
    assert g.shape == (fresh.dim,)
    np.testing.assert_array_equal(g, used.gradient(w, used.batch(1, 3)))
    for differing in (other.batch(1, 3), fresh.batch(1, 4), fresh.batch(0, 3)):
        assert (fresh.gradient(w, differing) != g).any()
    assert fresh.held_out_loss(w) == used.held_out_loss(w)
    assert fresh.evaluate(w) == used.evaluate(w)


@pytest.mark.parametrize("workload", ["cnn", "rnn"])
def test_a_minibatch_of_another_size_has_its_own_draws(workload, request):
    problem = request.getfixturevalue(workload)
    x, y = problem.samples(problem.batch(0, 2, size=5))
    assert len(x) == len(y) == 5
    np.testing.assert_array_equal(x, problem.samples(problem.batch(0, 2, size=5))[0])


# --- what is evaluated ---------------------------------------------------------------------------


def test_nobody_trains_on_the_last_fifth_where_the_loss_of_the_cnn_is_taken(cnn):
    seen = {int(i) for rank in (0, 1) for k in range(40) for i in cnn.batch(rank, k).numbers}
    assert max(seen) < 80
    assert cnn.steps_per_epoch == 40 // 8
    data = images()
    w = cnn.initial(np.random.default_rng(0))
    x = Augmentation().leave(data.train_x[80:])
    loss, _ = cnn._model.evaluate(w, x, data.train_y[80:].astype(np.int32))
    assert cnn.evaluate(w).loss == pytest.approx(loss, rel=1e-6)
    x = Augmentation().leave(data.test_x)
    loss, error = cnn._model.evaluate(w, x, data.test_y.astype(np.int32))
    assert cnn.held_out_loss(w) == pytest.approx(loss, rel=1e-6)
    assert cnn.evaluate(w).error == error


def test_pieces_of_an_evaluation_weigh_as_many_samples_as_they_have(rnn):
    """450 test samples are three pieces of 128 and one of 66."""
    rng = np.random.default_rng(3)
    data = table("rail", 10)
    x, y = rng.random((450, 10)).astype(np.float32), rng.integers(0, 10, 450)
    y[384:] = 0  # the last piece is unlike the others
    problem = workloads.build("rnn", replace(data, test_x=x, test_y=y), 64, seed=1)
    w = problem.initial(np.random.default_rng(0))
    w[-10] = 2  # prefers class 0
    whole = Dropout(384, 0.4).leave(x)
    loss, error = problem._model.evaluate(w, whole, y.astype(np.int32))
    assert problem.held_out_loss(w) == pytest.approx(loss, rel=1e-6)
    assert problem.evaluate(w).error == pytest.approx(error, abs=1e-12)


# --- the kernel machine --------------------------------------------------------------------------


def loss_as_written(b: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Σ_c Σ_ij K_ij (bᵀb)_ij y_ci y_cj - Σ b, with loops."""
    n, x = len(y), x.astype(float)
    total = -b.sum()
    for c in range(10):
        sign = np.where(y == c, 1, -1)
        for i in range(n):
            for j in range(n):
                k = np.exp(-10 * np.sum((x[i] - x[j]) ** 2))
                total += k * (b[:, i] @ b[:, j]) * sign[i] * sign[j]
    return total


def test_the_held_out_loss_of_the_kernel_machine_is_the_mean_of_whole_minibatches(svm):
    """Of 100 test samples 96 fill six."""
    data = table("chiller", 8)
    w = np.random.default_rng(0).normal(0, 0.1, 160).astype(np.float32)
    chosen = keyed_rng(1, "held out", 0, 0).permutation(100)[:96].reshape(6, 16)
    b = w.reshape(10, 16).astype(float)
    losses = [loss_as_written(b, data.test_x[one], data.test_y[one]) for one in chosen]
    assert svm.held_out_loss(w) == pytest.approx(np.mean(losses), rel=1e-5)


def test_the_gradient_of_the_kernel_machine_is_its_slope(svm):
    """The loss is quadratic: a central difference in float64 has no error but rounding."""
    data = table("chiller", 8)
    w = np.random.default_rng(0).normal(0, 0.1, 160).astype(np.float32)
    batch = svm.batch(0, 2)
    x, y = data.train_x[batch], data.train_y[batch]
    g = svm.gradient(w, batch)
    for i in (0, 17, 95, 159):
        u = np.zeros(160)
        u[i] = 0.5
        up, down = (loss_as_written((w + s * u).reshape(10, 16), x, y) for s in (1, -1))
        assert g[i] == pytest.approx(up - down, rel=1e-4)


def test_the_mean_loss_of_the_kernel_machine_is_never_below_its_bound(svm):
    """-n/4 = -4, over random minibatches of 16; the exact bound is closer."""
    data = table("chiller", 8)
    k = kernel(data.train_x, data.train_x) * (6 + 4 * (data.train_y[:, None] == data.train_y))
    m = (k.sum() - 10 * 600) / (600 * 599)
    assert m > 0.1
    bound = -10 * 16 / (4 * (10 + 15 * m))
    assert -4 < bound < -1
    at = np.full(160, 1 / (2 * (10 + 15 * m)), np.float32)
    # The sample of the training loss is all 600, in 37 of the minibatches meant above.
    assert svm.evaluate(at).loss == pytest.approx(bound, rel=0.05)
    best = np.linalg.solve(2 * svm._train.astype(float), np.ones(16))
    assert svm._loss(np.tile(best, 10).astype(np.float32), svm._train) > -4


def test_the_kernel_machine_learns_where_on_the_curve_a_sample_is(svm):
    w = svm.initial(np.random.default_rng(0))
    assert svm.evaluate(w).loss == 0
    for k in range(200):
        w = w - np.float32(0.01) * svm.gradient(w, svm.batch(k % 2, k // 2))
    assert svm.evaluate(w).error < 0.6  # 16 samples vote; by chance 0.9
    assert svm.held_out_loss(w) < -1


def test_a_kernel_is_one_where_samples_are_equal():
    x = np.float32([[0, 0], [0.1, 0.3]])
    np.testing.assert_allclose(kernel(x, x), [[1, np.exp(-1)], [np.exp(-1), 1]], rtol=1e-6)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "data", "batch_size", "words"),
    [
        ("cnn", replace(images(), manifest={"image_shape": [28, 28], "pca": None}), 8, "--pca=0"),
        ("cnn", replace(images(), manifest=IMAGES | {"pca": {"components": 5}}), 8, "32×32×3"),
        ("cnn", images(), 41, "the smallest of 2 parts has 40 samples"),
        ("rnn", table("mnist", 10), 8, "--dataset=mnist is no series"),
        ("svm", table("chiller", 8), 101, "the test set has 100 samples"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused_in_one_line(workload, data, batch_size, words):
    with pytest.raises(BadInput, match=words) as refusal:
        workloads.build(workload, data, batch_size, seed=1)
    assert "\n" not in str(refusal.value)


def test_the_kernel_machine_has_minibatches_of_one_size(svm):
    assert len(svm.batch(0, 0, size=16)) == 16
    with pytest.raises(BadInput, match="a minibatch of 8"):
        svm.batch(0, 0, size=8)
