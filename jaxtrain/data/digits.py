"""Handwritten digits: 1797 real images of 8 x 8 pixels that come with scikit-learn."""

import numpy as np

from jaxtrain.data.arrays import Arrays
from jaxtrain.data.splits import check_splits, stratified_rows
from jaxtrain.errors import DataError

SPLITS = {"train": 0.7, "validation": 0.15, "test": 0.15}


class Digits(Arrays):
    """One split of the digits, in memory; needs the extra `examples`.

    Example: image [8, 8, 1] float32 from 0 (paper) to 1 (ink), label [] int32.

    split: train, validation or test: 70, 15 and 15 % of each digit, always the same ones.

    The images are Alpaydin and Kaynak's, of 43 writers (https://doi.org/10.24432/C50P49). They do not say which writer
    drew which, so that writers are in all splits.
    """

    def __init__(self, split: str):
        bounds = check_splits(SPLITS, split)[split]
        try:
            from sklearn.datasets import load_digits  # an optional extra: only examples need it
        except ImportError as error:
            raise DataError("the digits come with scikit-learn: pip install 'jaxtrain[examples]'") from error
        data = load_digits()
        rows = stratified_rows(data.target, bounds)
        image = (data.images[rows, :, :, None] / 16).astype(np.float32)
        super().__init__(arrays={"image": image, "label": data.target[rows].astype(np.int32)})
