"""SCAR's workloads as iterations of one vector in blocks: qp, mlr, mf, cnn, and their table."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from cbdybw.errors import BadInput
from cbdybw.learning import workloads
from cbdybw.learning.factorization import Factorization
from cbdybw.learning.iterated import ITERATED
from cbdybw.learning.qp import QuadraticProgram
from cbdybw.learning.softmax import CRITERION_SAMPLES, SoftmaxRegression
from cbdybw.problem import iterate
from cbdybw.storage.datasets import Dataset
from data_prep.ratings import Ratings
from experiments.settings import Settings

ETA = 0.5


def digits() -> Dataset:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1500], order[1500:]
    about = {"image_shape": [8, 8], "pca": None}
    return Dataset("digits", x[train], y[train], x[test], y[test], [np.arange(1500)], 10, about)


def rated(users: int = 30, items: int = 12, seed: int = 0) -> np.ndarray:
    """A third of all ratings of rank 3 with noise; the last user has rated nothing."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(users, 3)) @ rng.normal(size=(3, items))
    values += rng.normal(0, 0.1, values.shape)
    values[rng.random(values.shape) > 1 / 3] = np.nan
    values[-1] = np.nan
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def mlr():
    return workloads.build("mlr", digits(), 256, seed=1, eta0=ETA)


@pytest.fixture(scope="module")
def mf():
    return Factorization(rated(), rank=3, ridge=0.5, users=0, seed=0)


@pytest.fixture(scope="module")
def cnn():
    return workloads.build("cnn", digits(), 64, seed=1, eta0=0.01)


@pytest.fixture(params=["qp", "mlr", "mf", "cnn"])
def problem(request, mlr, mf, cnn):
    return {"qp": QuadraticProgram(4, 0.1, seed=0), "mlr": mlr, "mf": mf, "cnn": cnn}[request.param]


def some(problem, seed: int = 5) -> np.ndarray:
    """A point a few iterations from the start."""
    x = problem.initial(np.random.default_rng(seed))
    for k in range(3):
        x = iterate(problem, x, k)
    return x


# --- all of them ---------------------------------------------------------------------------------


def test_a_part_is_a_pure_function_that_leaves_x_as_it_is(problem):
    x = some(problem)
    x.setflags(write=False)
    first = problem.part(x, 1, 3, 7)
    problem.part(x, 0, 3, 80)  # something else in between
    assert first.dtype == np.float32
    assert first.shape == (problem.dim,) == x.shape
    assert problem.part(x, 1, 3, 7).tobytes() == first.tobytes()
    assert not np.shares_memory(first, x)


def test_blocks_cover_x_and_the_distance_is_zero_only_where_nothing_has_changed(problem):
    x = some(problem)
    assert problem.blocks.dim == problem.dim
    y = x.copy()
    block = len(problem.blocks) // 2
    y[problem.blocks.starts[block]] += 1
    distances = problem.distance(y, x, problem.blocks)
    assert distances.shape == (len(problem.blocks),)
    assert np.flatnonzero(distances).tolist() == [block]
    assert distances[block] == pytest.approx(1, rel=1e-6)


def test_the_criterion_falls_and_is_what_evaluations_and_looks_report(problem):
    x = problem.initial(np.random.default_rng(5))
    start = problem.criterion(x)
    for k in range(20):
        x = iterate(problem, x, k)
    end = problem.criterion(x)
    assert end < 0.7 * start
    assert problem.evaluate(x).loss == problem.held_out_loss(x) == end
    assert type(end) is float


def test_no_workload_but_the_cnn_loads_tensorflow():
    code = (
        "import sys, numpy as np\n"
        "from cbdybw.learning import workloads\n"
        "workloads.build('qp', None, 1, seed=0)\n"
        "from data_prep.ratings import Ratings\n"
        "r = Ratings(np.ones((3, 3), np.float32), {'dataset': 'jester'})\n"
        "workloads.build('mf:rank=2', r, 1, seed=0)\n"
        "assert not {'tensorflow', 'keras', 'numba'} & set(sys.modules), sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- qp ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "c"), [(0.4, 0.6), (0.2, 0.8), (0.1, 0.9)])
def test_the_contraction_of_the_quadratic_program_is_the_papers_arithmetic(alpha, c):
    assert QuadraticProgram(4, alpha, seed=3).contraction == pytest.approx(c, abs=1e-12)


@settings(max_examples=30)
@given(dim=st.integers(1, 9), alpha=st.floats(0.01, 0.49), seed=st.integers(0, 2**32 - 1))
def test_k_iterations_are_the_kth_power_of_the_closed_form(dim, alpha, seed):
    """Rounding: x is rounded to float32 in each of 20 iterations, 2^-24 of its length at most;
    growing errors there are none, as c < 1."""
    qp = QuadraticProgram(dim, alpha, seed)
    a = qp.eigenvectors @ np.diag(qp.eigenvalues) @ qp.eigenvectors.T
    np.testing.assert_allclose(np.linalg.eigvalsh(a), np.linspace(1, 4, dim) if dim > 1 else [1])
    x0 = x = qp.initial(np.random.default_rng(seed))
    assert qp.criterion(x0) == pytest.approx(10, rel=1e-6)
    for k in range(20):
        before, x = x, iterate(qp, x, k)
        assert qp.criterion(x) <= qp.contraction * qp.criterion(before) + 1e-6
    closed = np.linalg.matrix_power(np.eye(dim) - alpha * a, 20) @ x0
    np.testing.assert_allclose(x, closed, atol=1e-5)


def test_the_contraction_is_attained_along_the_slow_eigenvector():
    qp = QuadraticProgram(4, 0.1, seed=0)
    x = (10 * qp.eigenvectors[:, 0]).astype(np.float32)
    for k in range(30):
        x = iterate(qp, x, k)
    assert qp.criterion(x) == pytest.approx(10 * 0.9**30, rel=1e-5)


@pytest.mark.parametrize("n", [2, 4, 7])
def test_workers_of_the_quadratic_program_add_up_to_its_gradient(n):
    qp = QuadraticProgram(4, 0.1, seed=0)
    x = qp.initial(np.random.default_rng(1))
    np.testing.assert_allclose(iterate(qp, x, 0, n), iterate(qp, x, 0), atol=2e-6)


# --- mlr -----------------------------------------------------------------------------------------


def loss(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    """Mean cross-entropy in float64, written as a sum over samples."""
    total = 0.0
    for features, label in zip(x.astype(float), y, strict=True):
        logits = np.append(features, 1) @ w.reshape(-1, 10)
        total += np.log(np.exp(logits).sum()) - logits[label]
    return total / len(y)


def test_a_step_of_mlr_is_the_slope_of_the_loss_over_its_minibatch(mlr):
    """Central differences in float64, along 20 random directions and along single weights."""
    rng = np.random.default_rng(2)
    w = rng.normal(0, 0.3, mlr.dim)
    numbers = mlr._minibatches(0, 4, 256)
    x, y = digits().train_x[numbers], digits().train_y[numbers]
    step = mlr.part(w.astype(np.float32), 0, 1, 4).astype(float)
    directions = [*rng.normal(size=(20, mlr.dim)), np.eye(mlr.dim)[645], np.eye(mlr.dim)[203]]
    for u in directions:
        slope = (loss(w + 1e-5 * u, x, y) - loss(w - 1e-5 * u, x, y)) / 2e-5
        assert step @ u == pytest.approx(-ETA * slope, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("n", [2, 4, 300])
def test_however_many_workers_share_it_the_minibatch_of_mlr_is_the_same(mlr, n):
    """Their sums differ by rounding only: 256 terms of float32, some 1e-7 each. Of 300 workers 44
    have no sample."""
    w = np.random.default_rng(3).normal(0, 0.3, mlr.dim).astype(np.float32)
    np.testing.assert_allclose(iterate(mlr, w, 9, n), iterate(mlr, w, 9), atol=1e-6)


def test_mlr_has_a_block_for_each_feature_and_one_for_the_bias(mlr):
    assert (len(mlr.blocks), mlr.blocks.size, mlr.dim) == (65, 10, 650)
    step = mlr.part(mlr.initial(None), 0, 1, 0).reshape(65, 10)
    corner = digits().train_x[:, 0]  # a pixel that is black in all digits
    assert not corner.any()
    assert not step[0].any()
    assert step[64].any()


def test_the_criterion_of_mlr_is_the_loss_and_its_error_is_of_the_test_set(mlr):
    w = some(mlr)
    data = digits()  # fewer training samples than the criterion takes
    assert len(data.train_y) < CRITERION_SAMPLES
    assert mlr.criterion(w) == pytest.approx(loss(w.astype(float), data.train_x, data.train_y))
    logits = data.test_x @ w.reshape(65, 10)[:64] + w.reshape(65, 10)[64]
    assert mlr.evaluate(w).error == np.mean(logits.argmax(1) != data.test_y)


def test_minibatches_of_mlr_depend_on_seed_and_iteration(mlr):
    w = some(mlr)
    twin, other = (SoftmaxRegression(digits(), 256, ETA, seed) for seed in (1, 2))
    assert (twin.part(w, 0, 1, 5) == mlr.part(w, 0, 1, 5)).all()
    assert (other.part(w, 0, 1, 5) != mlr.part(w, 0, 1, 5)).any()
    assert (mlr.part(w, 0, 1, 6) != mlr.part(w, 0, 1, 5)).any()


# --- mf ------------------------------------------------------------------------------------------


def by_hand(ratings: np.ndarray, x: np.ndarray, rank: int, ridge: float) -> np.ndarray:
    """An iteration of ALS row by row, in float64."""
    users = len(ratings)
    rows = x.reshape(-1, rank).astype(float)
    left, right = rows[:users].copy(), rows[users:].copy()
    for u in range(users):
        seen = ~np.isnan(ratings[u])
        f, r = right[seen], ratings[u, seen]
        left[u] = np.linalg.solve(f.T @ f + ridge * np.eye(rank), f.T @ r)
    for i in range(ratings.shape[1]):
        seen = ~np.isnan(ratings[:, i])
        f, r = left[seen], ratings[seen, i]
        right[i] = np.linalg.solve(f.T @ f + ridge * np.eye(rank), f.T @ r)
    return np.concatenate([left, right]).ravel()


def objective(ratings: np.ndarray, x: np.ndarray, rank: int, ridge: float) -> float:
    rows, users = x.reshape(-1, rank).astype(float), len(ratings)
    error = np.nansum((rows[:users] @ rows[users:].T - ratings) ** 2)
    return (error + ridge * (x.astype(float) ** 2).sum()) / np.sum(~np.isnan(ratings))


def test_an_iteration_of_mf_is_that_of_a_loop_over_users_and_items(mf):
    """Within float32 of systems whose condition is below 1e3."""
    x = mf.initial(np.random.default_rng(4))
    for k in range(4):
        after = iterate(mf, x, k)
        np.testing.assert_allclose(after, by_hand(rated(), x, 3, 0.5), atol=3e-4)
        assert mf.criterion(after) == pytest.approx(objective(rated(), after, 3, 0.5), rel=1e-5)
        x = after


def test_each_half_of_an_iteration_solves_its_normal_equations(mf):
    x = iterate(mf, mf.initial(np.random.default_rng(4)), 0)
    before = mf.initial(np.random.default_rng(4)).reshape(-1, 3)[30:]
    left, right = np.split(x.reshape(-1, 3).astype(float), [30])
    seen, ratings = ~np.isnan(rated()), np.nan_to_num(rated()).astype(float)
    for rows, fixed, mask, values in (
        (left, before.astype(float), seen, ratings),
        (right, left, seen.T, ratings.T),
    ):
        residual = (mask * (rows @ fixed.T - values)) @ fixed + 0.5 * rows
        assert np.abs(residual).max() < 1e-4
    assert not left[-1].any()  # this user has rated nothing


@settings(max_examples=25)
@given(
    rank=st.integers(1, 6), ridge=st.floats(0.01, 10), seed=st.integers(0, 10**6),
    users=st.integers(2, 40),
)  # fmt: skip
def test_the_objective_of_mf_never_rises(rank, ridge, seed, users):
    ratings = rated(users, 9, seed)
    if np.isnan(ratings).all():
        return
    mf = Factorization(ratings, rank, ridge, 0, 0)
    x = mf.initial(np.random.default_rng(seed))
    values = [objective(ratings, x, rank, ridge)]
    for k in range(15):
        x = iterate(mf, x, k)
        values.append(objective(ratings, x, rank, ridge))
    assert (np.diff(values) <= 1e-5 * np.array(values[:-1])).all()


@pytest.mark.parametrize("n", [2, 5, 40])
def test_workers_of_mf_change_their_own_rows_and_add_up_to_an_iteration(mf, n):
    """Exact but for one rounding of x + (f(x) − x), and for products that are cut elsewhere."""
    x = some(mf)
    parts = np.array([mf.part(x, j, n, 0).reshape(-1, 3) for j in range(n)])
    assert ((parts != 0).any(axis=2).sum(axis=0) <= 1).all()
    np.testing.assert_allclose(x + parts.sum(axis=0).ravel(), iterate(mf, x, 0), atol=1e-5)


def test_blocks_of_mf_are_the_rows_of_users_then_of_items(mf):
    assert (len(mf.blocks), mf.blocks.size) == (30 + 12, 3)
    x = some(mf)
    changed = x.copy()
    mf.blocks.put(changed, np.array([30 + 7]), np.zeros(3, np.float32))  # the row of item 7
    concerned = ~np.isnan(rated()[:, 7])
    before, after = (iterate(mf, v, 0).reshape(-1, 3) for v in (x, changed))
    assert ((before[:30] != after[:30]).any(axis=1) == concerned).all()
    lost = x.copy()
    mf.blocks.put(lost, np.arange(30), np.zeros(90, np.float32))  # all users
    np.testing.assert_allclose(iterate(mf, lost, 0), iterate(mf, x, 0), atol=1e-6)


def test_users_are_drawn_by_the_seed_but_are_the_same_in_all_runs_of_a_workload():
    one, again, other = (Factorization(rated(), 2, 1.0, 10, seed) for seed in (0, 0, 1))
    assert len(one.blocks) == 10 + 12
    x = one.initial(np.random.default_rng(0))
    assert one.criterion(x) == again.criterion(x) != other.criterion(x)
    ratings = Ratings(rated(), {"dataset": "jester"})
    one, other = (workloads.build("mf:users=10", ratings, 1, seed) for seed in (0, 1))
    x = one.initial(np.random.default_rng(0))
    assert one.criterion(x) == other.criterion(x)
    with pytest.raises(BadInput, match="users=31, and the data set has 30; use at most 30"):
        workloads.build("mf:users=31", ratings, 1, 0)


# --- cnn -----------------------------------------------------------------------------------------


def test_the_cnn_is_two_convolutions_and_three_dense_layers():
    cnn = workloads.build("cnn:blocks=layer", digits(), 64, seed=1, eta0=0.01)
    layers = [9 * 8 + 8, 9 * 8 * 16 + 16, 2 * 2 * 16 * 120 + 120, 120 * 84 + 84, 84 * 10 + 10]
    assert (cnn.blocks.sizes == 3 * np.array(layers)).all()


def test_shards_lie_within_a_tensor_and_are_alike_in_size(cnn):
    sizes = cnn.blocks.sizes // 3
    tensors = [72, 8, 1152, 16, 7680, 120, 10080, 84, 840, 10]
    ends = np.cumsum(sizes)
    assert np.isin(np.cumsum(tensors), ends).all()
    assert sizes.max() <= 256
    of_third = sizes[(ends > 80) & (ends <= 80 + 1152)]
    assert len(of_third) == 5
    assert np.ptp(of_third) <= 1


def test_iterations_of_the_cnn_are_steps_of_keras_adam(cnn):
    """Ten steps of size 0.01 by Keras, on the same minibatches: within 1e-4, a hundredth of the
    size of a step. Keras takes its powers of β in float32."""
    from cbdybw.learning import models
    from cbdybw.learning.flat import keras, tf

    x = cnn.initial(np.random.default_rng(6))
    network = models.le_net(8, 8, 10)
    variables = network.trainable_variables
    ends = np.cumsum([int(np.prod(v.shape)) for v in variables])
    for variable, value in zip(variables, np.split(x[::3], ends[:-1]), strict=True):
        variable.assign(value.reshape(variable.shape))
    adam = keras.optimizers.Adam(0.01)
    data = digits()
    for k in range(10):
        x = iterate(cnn, x, k)
        batch = cnn._minibatches(0, k, 64)
        with tf.GradientTape() as tape:
            logits = network(data.train_x[batch], training=True)
            labels = tf.constant(data.train_y[batch])
            mean = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        adam.apply_gradients(zip(tape.gradient(mean, variables), variables, strict=True))
    theirs = np.concatenate([np.ravel(v.numpy()) for v in variables])
    assert np.abs(theirs - cnn.initial(np.random.default_rng(6))[::3]).max() > 0.05
    np.testing.assert_allclose(x[::3], theirs, atol=1e-4)


def test_a_block_of_the_cnn_that_is_lost_loses_its_moments_and_no_others(cnn):
    x0 = cnn.initial(np.random.default_rng(6))
    x = some(cnn, 6)
    assert not x0.reshape(-1, 3)[:, 1:].any()
    lost = np.array([0, 7, len(cnn.blocks) - 1])
    y = x.copy()
    cnn.blocks.put(y, lost, cnn.blocks.take(x0, lost))
    gone = np.zeros(cnn.dim, bool)
    cnn.blocks.put(gone, lost, np.ones(cnn.blocks.sizes[lost].sum(), bool))
    assert (gone.reshape(-1, 3).all(axis=1) == gone.reshape(-1, 3).any(axis=1)).all()
    assert (y[gone] == x0[gone]).all()
    assert (y[~gone] == x[~gone]).all()
    assert not y.reshape(-1, 3)[gone[::3], 1:].any()


def test_the_distance_of_the_cnn_is_of_weights_not_of_moments_and_of_any_blocks(cnn):
    x = some(cnn)
    y = x.copy()
    y.reshape(-1, 3)[:, 1:] += 1
    assert not cnn.distance(y, x, cnn.blocks).any()
    y.reshape(-1, 3)[:, 0] += 0.5
    members = np.array([3, 4, len(cnn.blocks) - 1])
    packed = (cnn.blocks.take(v, members) for v in (y, x))
    distances = cnn.distance(*packed, cnn.blocks.subset(members))
    expected = 0.5 * np.sqrt(cnn.blocks.sizes[members] / 3)
    np.testing.assert_allclose(distances, expected, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 4, 70])
def test_workers_of_the_cnn_take_the_mean_of_their_own_steps(cnn, n):
    """Adam written out in float64, on each worker's share: of 70 workers 6 have no sample."""
    x = some(cnn)
    w, m, v = x.reshape(-1, 3).T.astype(float)
    data, batch = digits(), cnn._minibatches(0, 5, 64)
    steps = []
    for share in np.array_split(batch, min(n, 64)):
        g = cnn._model.gradient(
            x[::3].copy(), data.train_x[share], data.train_y[share].astype("i4")
        )
        m1, v1 = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g.astype(float) ** 2
        rate = 0.01 * np.sqrt(1 - 0.999**6) / (1 - 0.9**6)
        steps.append(np.column_stack([w - rate * m1 / (np.sqrt(v1) + 1e-7), m1, v1]).ravel())
    np.testing.assert_allclose(iterate(cnn, x, 5, n), np.mean(steps, axis=0), atol=1e-5)
    assert np.abs(steps[0] - x)[::3].max() > 5e-3


# --- the table and the flags ---------------------------------------------------------------------


def test_the_table_says_which_workloads_are_iterated_and_from_what_they_learn():
    assert ITERATED.keys() == {"qp", "mlr", "mf", "lda", "cnn"}
    assert ITERATED.keys() <= workloads.WORKLOADS.keys()
    assert not workloads.needs_data("qp:alpha=0.2")
    assert workloads.collection("mf:rank=3") == ("jester", "movielens")
    assert workloads.collection("lda") == ("newsgroups", "reuters", "generated")
    assert workloads.collection("mlr") == ()
    assert workloads.is_iterated("cnn:blocks=layer", "mnist")
    assert not workloads.is_iterated("cnn", "cifar10")
    assert not workloads.is_iterated("lrm", "mnist")


SCORES = {"pca": {"components": 5}, "image_shape": [28, 28]}
PCA = Dataset("mnist", *[np.zeros((1, 1))] * 4, [np.arange(1)], 10, SCORES)


@pytest.mark.parametrize(
    ("workload", "data", "batch_size", "eta0", "words"),
    [
        ("qp:alpha=0.5", None, 1, 1, "alpha=0.5 does not converge .* use less than 0.5"),
        ("qp:alpha=0", None, 1, 1, "alpha is '0'; use a finite number above 0"),
        ("qp:speed=1", None, 1, 1, "there is no key 'speed'; use qp:dim=4,alpha=0.1"),
        ("mf:ridge=0", Ratings(rated(), {"dataset": "jester"}), 1, 1, "ridge is '0'"),
        ("mlr", digits(), 1501, 1, "--batch_size=1501: .* use at most 1500"),
        ("cnn", digits(), 64, 0.2, "--eta0=0.2: .* use about 0.001, at most 0.1"),
        ("cnn", PCA, 64, 0.001, "needs pixels of one channel; use --dataset=mnist --pca=0"),
        ("cnn:blocks=row", digits(), 64, 0.001, "blocks is 'row'; use layer or shard"),
    ],
)
def test_an_iterated_workload_that_cannot_be_built_says_what_to_change(
    workload, data, batch_size, eta0, words
):
    with pytest.raises(BadInput, match=words) as refusal:
        workloads.build(workload, data, batch_size, 0, eta0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("workload", "dataset", "words"),
    [
        ("mf", "mnist", "--dataset=mnist: --workload=mf .* use jester or movielens"),
        ("lda", "jester", "--dataset=jester: .* use newsgroups or reuters or generated"),
        ("mlr", "movielens", "--dataset=movielens: .* labelled samples; .* --workload=mf"),
        ("lrm", "reuters", "--dataset=reuters: .* labelled samples; .* --workload=lda"),
        ("cnn:blocks=layer", "cifar10", "there is no key 'blocks'; use cnn$"),
    ],
)
def test_a_workload_on_the_wrong_kind_of_data_is_refused_in_one_line(workload, dataset, words):
    with pytest.raises(BadInput, match=words) as refusal:
        workloads.check(workload, dataset)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"workload": "mlr"}, "--algorithm=cb_dybw: --workload=mlr .* use --algorithm=scar"),
        ({"workload": "qp", "algorithm": "bsp"}, "--algorithm=bsp: .* use --algorithm=scar"),
        ({"workload": "cnn"}, "--algorithm=scar; .* ADSP's learns from --dataset=cifar10"),
        ({"algorithm": "scar"}, "--workload=lrm: --algorithm=scar iterates qp, mlr, mf, lda, cnn"),
        ({"algorithm": "scar", "workload": "cnn", "dataset": "cifar10"}, "SCAR's from mnist"),
    ],
)
def test_scar_and_iterated_workloads_need_each_other(flags, words):
    with pytest.raises(BadInput, match=words) as refusal:
        Settings(**flags)
    assert "\n" not in str(refusal.value)
    Settings(algorithm="scar", workload="qp")
    Settings(workload="cnn", dataset="cifar10", pca=0)
