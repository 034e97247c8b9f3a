"""From pixels to features: scaled to [0, 1], then PCA.

The principal components are those of the training split alone; test samples are projected on them.
Scores are plain projections, neither whitened nor divided by a common constant [choice: the paper
says only that PCA shrinks the inputs], so that distances between images are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cbdybw.errors import BadInput
from data_prep.images import Images, Split


class Features(NamedTuple):
    """Float32 features: train (n, d), test (m, d); `arrays` and `about` go into the data set.

    `arrays` holds PCA's components (d, pixels) and mean (pixels,), and is empty without a PCA.
    """

    train: np.ndarray
    test: np.ndarray
    arrays: dict[str, np.ndarray]
    about: dict[str, Any]


def features(images: Images, components: int) -> Features:
    """The first `components` principal components of `images`, or with 0 the scaled pixels."""
    train = _scaled(images.train, images.white)
    scaling = f"pixels / {images.white}"
    if components == 0:
        test = _scaled(images.test, images.white)
        return Features(train, test, {}, {"scaling": scaling, "pca": None})
    if components > min(train.shape):
        raise BadInput(
            f"--pca={components}: {train.shape[0]} training samples of {train.shape[1]} pixels "
            f"have at most {min(train.shape)} components; use --pca={min(train.shape)} or less"
        )
    if (images.train.pixels.min(axis=0) == images.train.pixels.max(axis=0)).all():
        raise BadInput(
            f"{images.train.source}: all training images are alike, so that PCA finds nothing; "
            "use --pca=0 or other data"
        )
    pca = _fit(train, components)
    about = {
        "scaling": f"{scaling}, minus the training mean, projected on the principal components",
        "pca": {
            "components": components,
            "explained_variance": float(pca.explained_variance_ratio_.sum(dtype=float)),
            "explained_variance_ratio": pca.explained_variance_ratio_.astype(float).tolist(),
        },
    }
    arrays = {"pca_components.npy": pca.components_, "pca_mean.npy": pca.mean_}
    test = pca.transform(_scaled(images.test, images.white))
    return Features(pca.transform(train), test, arrays, about)


def _scaled(split: Split, white: int) -> np.ndarray:
    flat = split.pixels.reshape(len(split.pixels), -1)
    return np.divide(flat, np.float32(white), dtype=np.float32)


def _fit(train: np.ndarray, components: int):
    from sklearn.decomposition import PCA  # here, because the import takes a second

    # The covariance of the pixels is small and needs no centred copy of the samples.
    return PCA(components, svd_solver="covariance_eigh").fit(train)
