"""Keras's packing of MNIST: one .npz with x_train, y_train, x_test and y_test."""

from __future__ import annotations

import io

import numpy as np

from cbdybw.errors import BadInput
from data_prep.files import Find
from data_prep.images import Images, paired

NAME = "mnist.npz"


def read(find: Find) -> Images:
    """The data set in mnist.npz. Pickled arrays are refused."""
    file = find(NAME)
    try:
        with np.load(io.BytesIO(file.data), allow_pickle=False) as arrays:
            x_train, y_train = arrays["x_train"], arrays["y_train"]
            x_test, y_test = arrays["x_test"], arrays["y_test"]
    except KeyError as missing:
        raise BadInput(
            f"{file.name}: {missing.args[0]}; needed are x_train, y_train, x_test and y_test"
        ) from missing
    except Exception as error:  # damaged bytes reach zipfile, zlib and NumPy's header parser
        reason = " ".join(str(error).split())
        raise BadInput(f"{file.name}: truncated or no .npz of plain arrays ({reason})") from error

    def name(array: str) -> str:
        return f"{file.name}[{array}]"

    return Images(
        paired(x_train, y_train, name("x_train"), name("y_train")),
        paired(x_test, y_test, name("x_test"), name("y_test")),
    )
