"""Prepare a data set for training: raw data → features → one part per worker, with a manifest.

    python -m data_prep.prepare --dataset=mnist --pca=50 --partition=iid --workers=6 --out=DIR

DIR is then what `cbdybw.storage.datasets.load` reads. It appears as a whole or not at all. Asking
again with the same parameters only verifies its checksums; with others it is refused. Sets in
folders side by side that differ only in their partition share the files of their features.

What happens is told on stderr; the last line on stdout is a summary. Bad input ends with exit
code 2.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import app, flags

from cbdybw.errors import BadInput
from cbdybw.specs import select
from cbdybw.storage import datasets
from cbdybw.storage.atomic import publishing_folder
from data_prep import partitions, siblings, sources, tables
from data_prep.features import features
from data_prep.images import CLASSES

IMAGES = ("auto", "mnist", "fashion_mnist", "cifar10", "digits")
DATASETS = (*IMAGES, *tables.TABLES)
STAND_IN_BATCH = 256


@dataclass(frozen=True)
class Preparation:
    """What to prepare; the flags of the same names.

    Attributes:
        dataset: one of DATASETS; `auto` is MNIST, or the embedded digits when no source has it.
            `rail`, `chiller` and `covertype` are numbers; `rail:window=N` has windows of N values.
        pca: number of principal components; 0 keeps the pixels, scaled to [0, 1], or the numbers.
        partition: iid, shards:K, dirichlet:ALPHA or thinned:SHARE.
        workers: number of parts.
        batch_size: samples that every worker must have at least.
        seed: decides the partition.
        raw_dir: folder of the original files, or of rail.csv, chiller.csv or covtype.data; empty to
            try the other sources.
    """

    dataset: str = "mnist"
    pca: int = 50
    partition: str = "iid"
    workers: int = 6
    batch_size: int = 1024
    seed: int = 0
    raw_dir: str = ""

    def __post_init__(self):
        if tables.is_table(self.dataset):
            select(self.dataset, "--dataset", tables.TABLES)
            if self.pca != 0:
                raise BadInput(f"--pca={self.pca}: {self.dataset} has no pixels; use --pca=0")
        elif self.dataset not in IMAGES:
            raise BadInput(f"--dataset={self.dataset}: unknown; use {', '.join(DATASETS)}")
        if self.dataset == "digits" and self.raw_dir:
            raise BadInput("--dataset=digits: the digits are embedded; leave --raw_dir out")
        for name, least in {"pca": 0, "workers": 1, "batch_size": 1, "seed": 0}.items():
            if getattr(self, name) < least:
                raise BadInput(f"--{name}={getattr(self, name)}: use {least} or more")
        partitions.parse(self.partition)


def prepare(
    spec: Preparation, out: str | os.PathLike, log: Callable[[str], None] = print
) -> dict[str, Any]:
    """Prepare `spec` in the folder `out`, or verify that it is there; return the manifest.

    Beside what `datasets.write` adds, the manifest says: `dataset`, `classes`, `image_shape` (a
    sample with pca=0 reshapes to it), `batch_size` and `notice` (None, or the line that every
    result must carry), `parameters`, `source`, `scaling`, `pca` and `versions`.

    Raises BadInput, with nothing left behind, when the raw data cannot be had or is damaged, the
    parameters do not fit it, or `out` holds something else.
    """
    out = Path(out)
    manifest = _prepared_before(spec, out)
    if manifest is not None:
        datasets.verify(out)
        log(f"{out}: prepared before; all checksums hold")
        return manifest

    from_raw_data = _from_a_table if tables.is_table(spec.dataset) else _from_images
    whole = _of_a_sibling(spec, out, log) or from_raw_data(spec, log)
    batch_size = min(spec.batch_size, STAND_IN_BATCH) if whole.stand_in else spec.batch_size
    parts = partitions.partition(spec.partition, whole.labels, spec.workers, batch_size, spec.seed)
    arrays, about = whole.features()
    about |= {
        "batch_size": batch_size,
        "notice": _notice(spec.batch_size, batch_size) if whole.stand_in else whole.notice,
        "parameters": _parameters(spec),
    }
    try:
        with publishing_folder(out) as folder:
            datasets.write(folder, arrays, parts, about)
    except OSError as error:
        raise BadInput(f"--out={out}: cannot be written ({error.strerror})") from error
    # Somebody else may have published there first; then theirs must be what we were asked for.
    return _prepared_before(spec, out)


class _Whole(NamedTuple):
    """A data set that is not divided yet.

    `labels`: of its training samples. `features()`: the arrays of its files by name, and what the
    manifest says of them. `notice`: the manifest's, unless this is a stand-in.
    """

    labels: np.ndarray
    stand_in: bool
    features: Callable[[], tuple[dict[str, np.ndarray | Path], dict[str, Any]]]
    notice: str | None = None


def _from_a_table(spec: Preparation, log: Callable[[str], None]) -> _Whole:
    samples, source, notice = tables.find(spec.dataset, spec.raw_dir, log)
    arrays = {
        "train_x.npy": samples.train_x,
        "train_y.npy": samples.train_y,
        "test_x.npy": samples.test_x,
        "test_y.npy": samples.test_y,
    }
    about = {
        "dataset": spec.dataset,
        "classes": samples.classes,
        "image_shape": [samples.train_x.shape[1]],
        "source": source,
        "scaling": samples.scaling,
        "pca": None,
        "versions": _versions(),
    }
    return _Whole(samples.train_y, False, lambda: (arrays, about), notice)


def _from_images(spec: Preparation, log: Callable[[str], None]) -> _Whole:
    dataset, images, source, stand_in = sources.find(spec.dataset, spec.raw_dir, log)

    def computed() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        log(f"{dataset}: read from {source['name']} ({source['place']}); computing features")
        train_x, test_x, pca_arrays, how = features(images, spec.pca)
        arrays = {
            "train_x.npy": train_x,
            "train_y.npy": images.train.labels.astype("int64"),
            "test_x.npy": test_x,
            "test_y.npy": images.test.labels.astype("int64"),
            **pca_arrays,
        }
        log(f"{dataset}: writing {sum(array.nbytes for array in arrays.values()) / 1e6:.0f} MB")
        return arrays, {
            "dataset": dataset,
            "classes": CLASSES,
            "image_shape": list(images.train.pixels.shape[1:]),
            "source": source,
            **how,
            "versions": _versions(),
        }

    return _Whole(images.train.labels, stand_in, computed)


def _of_a_sibling(spec: Preparation, out: Path, log: Callable[[str], None]) -> _Whole | None:
    """The features in a folder beside `out`, where they are those asked for and undamaged.

    A --raw_dir of the same name is taken to hold the same files as it did then.
    """
    asked, versions = _parameters(spec), _versions()
    for folder, manifest in siblings.beside(out):
        there = manifest["parameters"]
        same_source = asked["raw_dir"] == there["raw_dir"] or (
            not asked["raw_dir"] and manifest["source"]["original"]
        )
        if (
            manifest["dataset"] == ("mnist" if spec.dataset == "auto" else spec.dataset)
            and manifest["notice"] is None  # not even where the same stand-in would do again
            and there["pca"] == spec.pca
            and same_source
            and manifest["versions"] == versions
            and siblings.is_sound(folder, log)
        ):
            log(f"{manifest['dataset']}: features are those of {folder}; dividing them anew")
            return _Whole(
                siblings.labels(folder), False, partial(siblings.shared, folder, manifest)
            )
    return None


def summary(manifest: dict[str, Any], out: str | os.PathLike) -> str:
    """One line about a prepared set, for people."""
    files, sizes = manifest["files"], manifest["partition_sizes"]
    samples, width = files["train_x.npy"]["shape"]
    pca = manifest["pca"]
    kept = f"PCA keeps {pca['explained_variance']:.1%} of the variance" if pca else "no PCA"
    line = (
        f"{out}: {manifest['dataset']} from {manifest['source']['name']}, "
        f"{samples} + {files['test_x.npy']['shape'][0]} samples of {width} features ({kept}), "
        f"{manifest['parameters']['partition']} over {len(sizes)} workers "
        f"({min(sizes)}…{max(sizes)} samples each), batch {manifest['batch_size']}"
    )
    return f"{line}. NOTE: {manifest['notice']}" if manifest["notice"] else line


def _prepared_before(spec: Preparation, out: Path) -> dict[str, Any] | None:
    """The manifest in `out`, None when there is nothing; BadInput when it is something else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    if not out.is_dir():
        raise BadInput(f"--out={out}: is a file; name a folder")
    if not (out / datasets.MANIFEST).exists():
        raise BadInput(f"--out={out}: holds other files; name a new folder")
    manifest = datasets.read_manifest(out)
    asked, there = _parameters(spec), manifest["parameters"]
    differing = [
        f"{name} is {there[name]} there, {asked[name]} asked for"
        for name in asked
        if asked[name] != there[name] and not _means_the_same(name, asked, manifest)
    ]
    if differing:
        raise BadInput(
            f"--out={out}: prepared with other parameters ({'; '.join(differing)}); "
            "name another folder or remove this one"
        )
    return manifest


def _means_the_same(name: str, asked: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """`auto` that found MNIST is mnist, and no --raw_dir asks for no particular source."""
    if name == "dataset":
        names = {asked["dataset"], manifest["parameters"]["dataset"]}
        return manifest["dataset"] == "mnist" and names == {"auto", "mnist"}
    return name == "raw_dir" and not asked["raw_dir"]


def _parameters(spec: Preparation) -> dict[str, Any]:
    raw_dir = str(Path(spec.raw_dir).resolve()) if spec.raw_dir else ""
    return {**asdict(spec), "raw_dir": raw_dir}


def _notice(asked: int, batch_size: int) -> str:
    line = "no source had MNIST: scikit-learn's digits (8×8, 1,547 for training) stand in for it"
    return line if asked == batch_size else f"{line}, with batch {batch_size} instead of {asked}"


def _versions() -> dict[str, str]:
    packages = ("numpy", "scikit-learn")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _define_flags() -> None:
    # Inside a function: experiments.train imports this module and has flags of these names.
    default = Preparation()
    flags.DEFINE_string("dataset", default.dataset, f"one of {', '.join(DATASETS)}")
    flags.DEFINE_integer("pca", default.pca, "principal components; 0: pixels scaled to [0, 1]")
    flags.DEFINE_string("partition", default.partition, partitions.FORMS)
    flags.DEFINE_integer("workers", default.workers, "parts to make")
    flags.DEFINE_integer("batch_size", default.batch_size, "samples a worker must have at least")
    flags.DEFINE_integer("seed", default.seed, "decides the partition")
    flags.DEFINE_string("raw_dir", default.raw_dir, "folder of the original files; empty: download")
    flags.DEFINE_string("out", None, "folder to make", required=True)


def _parse_flags(argv: list[str]) -> list[str]:
    try:
        rest = flags.FLAGS(argv)
    except flags.Error as error:
        sys.exit(_refuse(error))
    if rest[1:]:
        sys.exit(_refuse(f"{rest[1]}: not a flag; write --name=value"))
    return rest


def _refuse(reason: object) -> int:
    print(" ".join(str(reason).split()), file=sys.stderr)
    return 2


def main(_argv: list[str]) -> int:
    """The binary; returns its exit code."""
    values = flags.FLAGS
    try:
        spec = Preparation(**{name: values[name].value for name in Preparation.__annotations__})
        manifest = prepare(spec, values.out, log=lambda line: print(line, file=sys.stderr))
    except BadInput as error:
        return _refuse(error)
    print(summary(manifest, values.out))
    return 0


if __name__ == "__main__":
    _define_flags()
    app.run(main, flags_parser=_parse_flags)
