"""cbdybw.learning: flat models, workloads, schedules and the quadratic."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sklearn.datasets import load_digits

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.quadratic import Quadratic
from cbdybw.learning.schedules import exponential_decay
from cbdybw.storage.datasets import Dataset

WORKERS, BATCH = 3, 64


def digits() -> Dataset:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1500], order[1500:]
    parts = [np.sort(part) for part in np.split(np.arange(1500), [600, 1100])]
    return Dataset("digits", x[train], y[train], x[test], y[test], parts, 10, {})


@pytest.fixture(scope="module")
def dataset():
    return digits()


@pytest.fixture(scope="module")
def lrm(dataset):
    return workloads.build("lrm", dataset, BATCH, seed=1)


@pytest.fixture(scope="module")
def two_nn(dataset):
    return workloads.build("2nn", dataset, BATCH, seed=1)


def run_python(code: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


# --- flat models ---------------------------------------------------------------------------------


def test_the_vector_of_lrm_has_a_weight_per_feature_and_class_and_a_bias_per_class(lrm):
    assert lrm.dim == 64 * 10 + 10


def test_two_nn_has_two_hidden_layers_of_256_unless_told_otherwise(two_nn, dataset):
    assert two_nn.dim == 64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10
    narrow = workloads.build("2nn:width=8,depth=3", dataset, BATCH, seed=1)
    assert narrow.dim == 64 * 8 + 8 + 2 * (8 * 8 + 8) + 8 * 10 + 10


def test_the_gradient_of_lrm_is_the_textbook_formula(lrm):
    batch = lrm.batch(0, 0)
    x, y = lrm.samples(batch)
    w = np.random.default_rng(3).normal(size=lrm.dim).astype(np.float32)

    logits = x.astype(np.float64) @ w[:640].reshape(64, 10) + w[640:]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    residual = (p - np.eye(10)[y]) / len(y)
    expected = np.concatenate([(x.T @ residual).ravel(), residual.sum(axis=0)])

    np.testing.assert_allclose(lrm.gradient(w, batch), expected, rtol=0, atol=1e-6)


def test_the_gradient_of_two_nn_is_the_slope_of_its_loss_in_every_layer(two_nn):
    from cbdybw.learning.flat import FlatModel
    from cbdybw.learning.models import glorot_uniform, mlp

    model = mlp(64, 10)
    flat = FlatModel(model)
    w = glorot_uniform(model, np.random.default_rng(4))
    batch = two_nn.samples(two_nn.batch(1, 0))
    g = flat.gradient(w, *batch)
    ends = np.cumsum([np.prod(v.shape) for v in model.trainable_variables])
    for layer in np.split(np.arange(flat.dim), ends[:-1]):
        u = np.zeros_like(g)
        u[layer] = g[layer] / np.linalg.norm(g[layer])
        up, down = (flat.evaluate(w + np.float32(h) * u, *batch)[0] for h in (0.01, -0.01))
        assert (up - down) / 0.02 == pytest.approx(float(g @ u), rel=5e-3)


def test_a_flat_model_gives_its_keras_models_own_loss_and_error(dataset):
    from cbdybw.learning.flat import FlatModel, keras
    from cbdybw.learning.models import mlp

    model = mlp(64, 10, width=16)
    flat = FlatModel(model)
    y = dataset.test_y.astype(np.int32)
    logits = model.predict(dataset.test_x, verbose=0)
    loss, error = flat.evaluate(flat.get(), dataset.test_x, y)
    assert error == np.mean(logits.argmax(axis=1) != y)
    expected = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    assert loss == pytest.approx(float(np.mean(expected)), rel=1e-6)


def test_a_gradient_kept_by_the_caller_is_not_overwritten_by_later_ones(two_nn):
    w = two_nn.initial(np.random.default_rng(0))
    kept = [two_nn.gradient(w, two_nn.batch(0, k)) for k in range(8)]
    copies = [g.copy() for g in kept]
    for k in range(8, 40):
        two_nn.gradient(w, two_nn.batch(0, k))
        two_nn.evaluate(w)
    assert all(g.flags.owndata and g.flags.writeable for g in kept)
    for g, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(g, copy)


def test_a_vector_that_may_not_be_written_is_as_good_as_any(two_nn):
    w = two_nn.initial(np.random.default_rng(0))
    before = two_nn.gradient(w, two_nn.batch(0, 0))
    w.flags.writeable = False
    np.testing.assert_array_equal(two_nn.gradient(w, two_nn.batch(0, 0)), before)


def test_two_processes_of_one_seed_compute_the_same_bits_and_write_nothing_else():
    code = """
import hashlib
import numpy as np
from tests.test_learning import digits
from cbdybw.learning import workloads
for workload in ("lrm", "2nn"):
    p = workloads.build(workload, digits(), 64, seed=5)
    w = p.initial(np.random.default_rng(5))
    for k in range(20):
        w = w - np.float32(0.2) * p.gradient(w, p.batch(k % 3, k))
    print(hashlib.sha256(w.tobytes()).hexdigest(), p.evaluate(w))
"""
    with ThreadPoolExecutor() as pool:  # at once, as the ranks of a host run
        first, second = pool.map(run_python, [code] * 2)
    assert first.stdout == second.stdout
    assert len(first.stdout.splitlines()) == 2
    assert first.stderr == second.stderr == ""


def test_tensorflow_is_loaded_by_building_a_workload_that_learns_from_data_only():
    run_python(
        "import sys\n"
        "from cbdybw.learning import schedules, workloads\n"
        "workloads.build('quadratic', None, 1, seed=0)\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )


# --- starts --------------------------------------------------------------------------------------


def test_lrm_starts_at_zero_where_every_class_is_equally_likely(lrm):
    w = lrm.initial(np.random.default_rng(0))
    assert not w.any()
    assert lrm.evaluate(w).loss == pytest.approx(np.log(10), rel=1e-6)


def test_two_nn_starts_within_glorots_bounds_and_with_zero_biases(two_nn):
    w = two_nn.initial(np.random.default_rng(0))
    assert w.dtype == np.float32
    first, bias = w[: 64 * 256], w[64 * 256 : 65 * 256]
    limit = np.sqrt(6 / (64 + 256))
    assert not bias.any()
    assert 0.99 * limit < np.abs(first).max() <= limit
    assert first.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
    np.testing.assert_array_equal(w, two_nn.initial(np.random.default_rng(0)))
    assert (w != two_nn.initial(np.random.default_rng(1))).any()


# --- minibatches and evaluation ------------------------------------------------------------------


def test_an_epoch_shows_a_worker_different_samples_of_its_own_part(dataset, lrm):
    steps = 500 // BATCH
    seen = [i for k in range(steps) for i in lrm.batch(1, k)]
    assert len(seen) == steps * BATCH == len(set(seen))
    assert set(seen) <= set(dataset.parts[1])


def test_labels_stay_with_their_samples(dataset, lrm):
    batch = lrm.batch(2, 11)
    x, y = lrm.samples(batch)
    np.testing.assert_array_equal(x, dataset.train_x[batch])
    np.testing.assert_array_equal(y, dataset.train_y[batch])


def test_every_epoch_has_an_order_of_its_own(lrm):
    steps = 500 // BATCH
    assert (lrm.batch(1, 0) != lrm.batch(1, steps)).any()


def test_a_minibatch_depends_on_rank_index_and_seed_and_not_on_what_was_asked_before(dataset):
    fresh = workloads.build("lrm", dataset, BATCH, seed=1)
    used = workloads.build("lrm", dataset, BATCH, seed=1)
    for k in (30, 2, 17):
        used.batch(0, k), used.batch(1, k)
    np.testing.assert_array_equal(fresh.batch(0, 9), used.batch(0, 9))
    other = workloads.build("lrm", dataset, BATCH, seed=2)
    assert (fresh.batch(0, 9) != other.batch(0, 9)).any()


def test_the_epoch_of_the_schedule_is_that_of_the_smallest_part(lrm):
    assert lrm.steps_per_epoch == 400 // BATCH


def test_the_loss_is_taken_on_the_training_set_and_the_error_on_the_test_set(dataset, lrm):
    w = np.random.default_rng(0).normal(size=lrm.dim).astype(np.float32)
    logits = dataset.train_x @ w[:640].reshape(64, 10) + w[640:]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(1500), dataset.train_y]
    wrong = (dataset.test_x @ w[:640].reshape(64, 10) + w[640:]).argmax(axis=1) != dataset.test_y
    loss, error = lrm.evaluate(w)
    assert loss == pytest.approx(losses.mean(), rel=1e-5)
    assert error == wrong.mean()


def test_the_loss_of_a_large_training_set_is_taken_on_ten_thousand_of_its_samples():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30_000, 4)).astype(np.float32), rng.integers(0, 3, 30_000)
    large = Dataset("large", x, y, x[:100], y[:100], [np.arange(30_000)], 3, {})
    p, q = (workloads.build("lrm", large, BATCH, seed=seed) for seed in (1, 2))
    w = rng.normal(size=p.dim).astype(np.float32)
    logits = x @ w[:12].reshape(4, 3) + w[12:]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(30_000), y]
    sampling_error = losses.std() * np.sqrt((1 - 1 / 3) / 10_000)
    assert 0 < abs(p.evaluate(w).loss - losses.mean()) < 4 * sampling_error
    assert p.evaluate(w) != q.evaluate(w)
    assert p.evaluate(w) == p.evaluate(w)


def test_a_minibatch_of_another_size_is_drawn_from_the_same_shuffle(dataset, lrm):
    whole = np.concatenate([lrm.batch(1, k) for k in range(3)])
    np.testing.assert_array_equal(lrm.batch(1, 0, size=3 * BATCH), whole)
    np.testing.assert_array_equal(lrm.batch(1, 2, size=10), whole[20:30])
    np.testing.assert_array_equal(lrm.batch(1, 7, size=BATCH), lrm.batch(1, 7))
    assert set(lrm.batch(1, 1, size=400)) <= set(dataset.parts[1])
    with pytest.raises(BadInput, match="a minibatch of 501: worker 1 has 500 samples"):
        lrm.batch(1, 0, size=501)


def test_the_held_out_loss_is_that_of_test_samples_which_the_seed_alone_chooses(dataset):
    lrm = workloads.build("lrm", dataset, 12, seed=1)
    w = np.random.default_rng(0).normal(size=lrm.dim).astype(np.float32)
    chosen = np.sort(keyed_rng(1, "held out", 0, 0).permutation(297)[:120])
    x, y = dataset.test_x[chosen], dataset.test_y[chosen]
    logits = x @ w[:640].reshape(64, 10) + w[640:]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(120), y]
    assert lrm.held_out_loss(w) == pytest.approx(losses.mean(), rel=1e-5)
    assert workloads.build("lrm", dataset, 12, seed=2).held_out_loss(w) != lrm.held_out_loss(w)


def test_the_held_out_loss_of_a_small_test_set_is_that_of_all_its_samples(dataset, lrm):
    w = np.random.default_rng(0).normal(size=lrm.dim).astype(np.float32)
    logits = dataset.test_x @ w[:640].reshape(64, 10) + w[640:]
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(297), dataset.test_y]
    assert lrm.held_out_loss(w) == pytest.approx(losses.mean(), rel=1e-5)


@pytest.mark.parametrize(("workload", "eta", "error"), [("lrm", 1.0, 0.07), ("2nn", 0.5, 0.05)])
def test_averaged_gradients_of_all_workers_learn_the_digits(dataset, workload, eta, error):
    p = workloads.build(workload, dataset, BATCH, seed=1)
    w = p.initial(np.random.default_rng(0))
    for k in range(300):
        g = sum(p.gradient(w, p.batch(j, k)) for j in range(WORKERS)) / WORKERS
        w = w - np.float32(eta) * g
    assert p.evaluate(w).error < error


# --- the table -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "batch_size", "words"),
    [
        ("vgg", 64, "'vgg' is not known"),
        ("lrm:width=3", 64, "no key 'width'"),
        ("2nn:depth=0", 64, "depth is '0'"),
        ("2nn:width=many", 64, "width is 'many'"),
        ("quadratic:lam=nan", 64, "lam is 'nan'"),
        ("quadratic:sigma=-1", 64, "sigma is '-1'"),
        ("lrm", 401, "the smallest of 3 parts has 400 samples; use at most 400"),
        ("lrm", 0, "--batch_size=0"),
    ],
)
def test_a_workload_that_cannot_be_built_says_what_to_change(dataset, workload, batch_size, words):
    with pytest.raises(BadInput, match=words) as refusal:
        workloads.build(workload, dataset, batch_size, seed=1)
    assert "\n" not in str(refusal.value)


def test_only_models_of_data_need_data():
    need = {name for name in workloads.WORKLOADS if workloads.needs_data(name)}
    assert need == {"lrm", "2nn", "cnn", "rnn", "svm", "mlr", "mf", "lda"}
    assert workloads.needs_data("2nn:width=128,depth=3")


# --- schedules -----------------------------------------------------------------------------------


def test_the_learning_rate_decays_once_an_epoch_or_once_an_iteration():
    per_epoch = exponential_decay(0.2, 0.5, "epoch", steps_per_epoch=3)
    assert [per_epoch(k) for k in range(7)] == [0.2, 0.2, 0.2, 0.1, 0.1, 0.1, 0.05]
    per_iteration = exponential_decay(0.2, 0.5, "iteration", steps_per_epoch=3)
    assert [per_iteration(k) for k in range(3)] == [0.2, 0.1, 0.05]


@pytest.mark.parametrize(
    ("eta0", "delta", "every", "flag"),
    [
        (0.0, 0.9, "epoch", "--eta0=0.0"),
        (float("nan"), 0.9, "epoch", "--eta0=nan"),
        (float("inf"), 0.9, "epoch", "--eta0=inf"),
        (0.1, 0.0, "epoch", "--eta_decay=0.0"),
        (0.1, 1.01, "epoch", "--eta_decay=1.01"),
        (0.1, float("nan"), "epoch", "--eta_decay=nan"),
        (0.1, 0.9, "day", "--eta_decay_every=day"),
    ],
)
def test_a_schedule_refuses_what_is_no_learning_rate(eta0, delta, every, flag):
    with pytest.raises(BadInput, match=flag):
        exponential_decay(eta0, delta, every, steps_per_epoch=3)


# --- the quadratic -------------------------------------------------------------------------------


def test_without_noise_the_quadratic_contracts_to_the_mean_of_the_centres():
    centres = np.array([[0, 3], [2, 1], [4, -1]])
    p = Quadratic(centres, lam=2, sigma=0, seed=0)
    w = np.array([10, 10], np.float32)
    for k in range(60):
        w = w - np.float32(0.2) * sum(p.gradient(w, p.batch(j, k)) for j in range(3)) / 3
    np.testing.assert_allclose(w, [2, 1], atol=1e-6)
    assert p.evaluate(np.array([3, 3], np.float32)) == (5.0, 0.0)  # ½·2·(1² + 2²)
    assert p.held_out_loss(np.array([3, 3], np.float32)) == 5.0


def test_nothing_is_lost_where_nothing_is_learnt():
    timing = workloads.build("timing", None, 1, seed=0)
    assert np.isnan(timing.held_out_loss(timing.initial(np.random.default_rng(0))))


def test_the_noise_of_the_quadratic_is_keyed_by_worker_and_iteration():
    p = workloads.build("quadratic:dim=5", None, 1, seed=7)
    noise = {(j, k): p.batch(j, k)[1].tobytes() for j in range(3) for k in range(3)}
    assert len(set(noise.values())) == 9
    assert (
        noise[1, 2] == workloads.build("quadratic:dim=5", None, 1, seed=7).batch(1, 2)[1].tobytes()
    )


@pytest.mark.parametrize(("workers", "expected"), [(1, 0.052632), (6, 0.0087719)])
def test_sgd_settles_at_the_quadratics_stationary_error(workers, expected):
    """ησ²/(Nλ(2 − ηλ)) for each coordinate, η = 0.1; 20,000 coordinates stand for runs."""
    p = workloads.build("quadratic:dim=20000,lam=1,sigma=1", None, 1, seed=3)
    w = p.initial(keyed_rng(3, "init", 0, 0))
    for k in range(120):
        g = sum(p.gradient(w, p.batch(j, k)) for j in range(workers)) / workers
        w = w - np.float32(0.1) * g
    assert 2 * p.evaluate(w).loss / p.dim == pytest.approx(expected, rel=0.03)
