"""Matrix factorisation by alternating least squares.

Source: SCAR (arXiv 1810.07354), MF by ALS on MovieLens and Jester; a block is a row of a factor.
"""

from __future__ import annotations

import numpy as np

from cbdybw.clusters.worker import keyed_rng
from cbdybw.errors import BadInput
from cbdybw.problem import Evaluation
from cbdybw.scar.blocks import Blocks, euclidean


class Factorization:
    """f(x): all users' rows solved for the items' rows, then all items' rows for the new users'.

    x holds L (users, rank), then R (items, rank), which minimise

        Σ over ratings (r_ui − L_u·R_i)² + ridge·(‖L‖² + ‖R‖²)

    A half solves its normal equations exactly, so that no iteration raises the sum. f draws nothing
    and is the same for all k. It does not depend on L, so what is lost of L costs nothing.

    Args:
        ratings: float32 (users, items), NaN where there is none.
        rank: columns of L and R.
        ridge: weight of the squares, above 0, the same for rows with few and with many ratings
            [choice].
        users: the sum is over so many users, drawn by the seed; 0: all.
        seed: see `users`.
    """

    distance = staticmethod(euclidean)

    def __init__(self, ratings: np.ndarray, rank: int, ridge: float, users: int, seed: int):
        if users > len(ratings):
            raise BadInput(
                f"--workload=mf: users={users}, and the data set has {len(ratings)}; "
                f"use at most {len(ratings)}, or 0 for all"
            )
        if users:
            order = keyed_rng(seed, "users", 0, 0).permutation(len(ratings))
            ratings = ratings[np.sort(order[:users])]
        self._given = (~np.isnan(ratings)).astype(np.float32)
        self._ratings = np.nan_to_num(ratings)
        self._count = int(self._given.sum(dtype=np.float64))
        self._users, self._rank, self._ridge = len(ratings), rank, np.float32(ridge)
        self.blocks = Blocks.rows(sum(ratings.shape), rank)
        self.dim = self.blocks.dim

    def initial(self, rng: np.random.Generator) -> np.ndarray:
        """Normal values with variance 1/rank [choice], shape (dim,)."""
        x = rng.standard_normal(self.dim, dtype=np.float32)
        return x / np.sqrt(np.float32(self._rank))

    def part(self, x: np.ndarray, j: int, n: int, k: int) -> np.ndarray:
        """What an iteration changes in worker j's users and items, shape (dim,).

        Its items need all of the new users' rows, so each worker solves for all users.
        """
        rows = x.reshape(-1, self._rank)
        solved = self._solve(self._ratings, self._given, rows[self._users :])
        mine = np.array_split(np.arange(self._users), n)[j]
        items = np.array_split(np.arange(len(rows) - self._users), n)[j]
        part = np.zeros_like(rows)
        part[mine] = solved[mine] - rows[mine]
        new = self._solve(self._ratings.T[items], self._given.T[items], solved)
        part[self._users + items] = new - rows[self._users + items]
        return part.ravel()

    def criterion(self, x: np.ndarray) -> float:
        """The sum that is minimised, for each rating: mean squared error and ridge."""
        rows = x.reshape(-1, self._rank)
        error = rows[: self._users] @ rows[self._users :].T
        error -= self._ratings
        error *= self._given
        squares = float(np.vdot(error, error)) + float(self._ridge) * float(np.vdot(x, x))
        return squares / self._count

    def evaluate(self, w: np.ndarray) -> Evaluation:
        """The criterion; nothing is classified, so the error is 0."""
        return Evaluation(self.criterion(w), 0.0)

    def held_out_loss(self, w: np.ndarray) -> float:
        """The criterion."""
        return self.criterion(w)

    def _solve(self, ratings: np.ndarray, given: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """For each row of `ratings` (m, s) the z with (FᵀF + ridge·1) z = Fᵀr, where F are those
        rows of `fixed` (s, rank) that it rates; shape (m, rank)."""
        above = np.triu_indices(self._rank)
        products = given @ (fixed[:, above[0]] * fixed[:, above[1]])  # FᵀF of all rows at once
        normal = np.empty((len(ratings), self._rank, self._rank), np.float32)
        normal[:, above[0], above[1]] = normal[:, above[1], above[0]] = products
        normal[:, range(self._rank), range(self._rank)] += self._ridge
        return np.linalg.solve(normal, (ratings @ fixed)[:, :, None])[:, :, 0]
