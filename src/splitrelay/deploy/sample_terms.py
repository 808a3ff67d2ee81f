"""What the terms say about samples that are no images, and how a client's own file becomes such samples.

The text `Terms.samples` is JSON: the type of each input, the kind of the targets, the number of outputs, and for a
table the label columns and the fitted transform. It is part of the digest of the terms. Every host therefore applies
the same means, deviations and categories, and a client compares its columns, types and label names with them before it
sends anything.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from splitrelay.data.images import DataSet, ImageSet, Samples
from splitrelay.data.partition import Partition
from splitrelay.data.partition_io import export_folders
from splitrelay.data.samples import NO_TOKEN, TARGETS, SampleSet, Target, store_features
from splitrelay.data.tables import Table, TableTransform, drop_incomplete_rows, read_table, write_table
from splitrelay.data.user_samples import SHARE, TableFormat, build_rows, read_pair, split_table, store_targets
from splitrelay.deploy.backend import Inputs
from splitrelay.errors import InputError
from splitrelay.network import limits
from splitrelay.network.codec import LabelForm
from splitrelay.network.messages import Terms
from splitrelay.runs.spec import DataSpec, Spec
from splitrelay.structured_text import parse_json
from splitrelay.tensor_types import TensorType

IMAGE_PLACEHOLDER = (1, 1, 1)  # Terms.shape where the samples are no images
TABLE_ENDINGS = (".csv", ".csv.gz", ".parquet")


@dataclass(frozen=True)
class SampleTerms:
    """The form of samples that are no images.

    Attributes:
        inputs: The type of each input of the model.
        target: The kind of the targets.
        outputs: The number of outputs of the model.
        width: The numbers of one target, or None for one number.
        transform: The fitted transform of a table, or None for arrays.
    """

    inputs: tuple[TensorType, ...]
    target: Target
    outputs: int
    width: int | None = None
    transform: TableTransform | None = None

    def to_text(self) -> str:
        """Return the JSON text of these terms."""
        content = {
            "inputs": [[one.dtype, list(one.shape)] for one in self.inputs],
            "target": self.target,
            "outputs": self.outputs,
            "width": self.width,
            "transform": None if self.transform is None else self.transform.to_json(),
        }
        return json.dumps(content, sort_keys=True)

    @property
    def label_form(self) -> LabelForm:
        """The form of the labels in a message."""
        is_real = self.target in ("real", "multi-label")
        return LabelForm(self.width, is_real, NO_TOKEN if self.target == "tokens" else 0)


def describe_samples(samples: Samples) -> SampleTerms | None:
    """Return the terms of samples, or None for images."""
    if isinstance(samples, ImageSet):
        return None
    width = None if samples.y.ndim == 1 else int(samples.y.shape[1])
    return SampleTerms(samples.inputs, samples.target, samples.outputs, width, samples.transform)


def read_sample_terms(terms: Terms) -> SampleTerms | None:
    """Return what the terms say about samples, or None for images.

    Raises:
        InputError: The text is not that of sample terms, or a size is out of range.
    """
    if not terms.samples:
        return None
    try:
        content: Any = parse_json(terms.samples)
        inputs = tuple(TensorType(tuple(map(int, shape)), str(dtype)) for dtype, shape in content["inputs"])
        target, outputs, width = content["target"], int(content["outputs"]), content["width"]
        transform = None if content["transform"] is None else TableTransform.from_json(content["transform"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InputError("the server's terms of samples cannot be read", value=str(error)[:100]) from None
    sizes = [math.prod(one.shape) for one in inputs]
    has_sizes = bool(inputs) and all(1 <= size <= limits.PIXELS for size in sizes)
    has_sizes = has_sizes and all(0 < side <= 2**24 for one in inputs for side in one.shape)
    is_width = width is None or (isinstance(width, int) and 1 <= width <= limits.CLASSES)
    if target not in TARGETS or not has_sizes or not is_width or not 1 <= outputs <= limits.CLASSES:
        raise InputError("the server's terms of samples are outside their limits", value=terms.samples[:100])
    if transform is not None and inputs != (TensorType((len(transform.features),), "float32"),):
        raise InputError("the server's transform does not make the inputs that it names", value=str(inputs[0]))
    return SampleTerms(inputs, target, outputs, width, transform)


def get_model_sizes(terms: Terms) -> tuple[Inputs, int]:
    """Return the inputs of the model, as types or as the shape of images, and the number of its outputs."""
    samples = read_sample_terms(terms)
    return (terms.shape, len(terms.classes)) if samples is None else (samples.inputs, samples.outputs)


def get_label_form(terms: Terms) -> LabelForm:
    """Return the form of the labels in messages."""
    samples = read_sample_terms(terms)
    return LabelForm() if samples is None else samples.label_form


def get_columns(terms: Terms) -> tuple[str, ...]:
    """Return the columns of a table from which the samples of the terms are made; none for images and arrays."""
    samples = read_sample_terms(terms)
    if samples is None or samples.transform is None:
        return ()
    return tuple(column.name for column in samples.transform.columns)


def is_table_file(path: Path) -> bool:
    """Return whether a file can be a table."""
    return path.name.endswith(TABLE_ENDINGS)


def build_format(data: DataSpec) -> TableFormat:
    """Return how the columns of a table are used."""
    return TableFormat(
        data.label, data.client, data.categorical, data.ignore, data.missing, data.standardize, data.target
    )


def convert_table(table: Table, spec: Spec, terms: Terms, samples: SampleTerms) -> SampleSet:
    """Return the rows of a client's table as this run's samples.

    Raises:
        InputError: A column, a category or a label does not fit the terms. The error names it.
    """
    form = build_format(spec.data)
    if samples.transform is None:
        raise InputError(f"{table.of} is a table, but this run needs arrays", limit="an .npz file with x and y")
    lacking = [name for name in form.label if name not in table.columns]
    if lacking:
        hint = "The label column must have the name that the spec gives."
        raise InputError(f"{table.of} has no label column", value=", ".join(table.columns), limit=lacking[0], hint=hint)
    check_columns(samples.transform, form, table.of)
    names = [column.name for column in samples.transform.columns]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise InputError(f"{table.of} lacks columns of this run", value=", ".join(missing[:5]), limit=", ".join(names))
    if form.missing == "drop":
        categorical = [column.name for column in samples.transform.columns if column.categories]
        table = drop_incomplete_rows(table, names, categorical)
    return build_rows(table, form, samples.transform, terms.classes if form.target == "classes" else None)


def check_columns(transform: TableTransform, form: TableFormat, of: str) -> None:
    """Raise InputError if the server's transform is none that this client's own spec can give.

    The server chooses the transform, and a spec without terms does not fix it. Without this check the server could name
    a column that the spec ignores, and its values would leave the host as smashed data.
    """
    special = (*form.label, *((form.client,) if form.client else ()), *form.ignore)
    for column in transform.columns:
        limits_kept = {
            "not in label, client or ignore": column.name not in special,
            "a column of names if it is in categorical": bool(column.categories) == (column.name in form.categorical),
            f"missing={form.missing}": (column.fill is not None) == (form.missing in ("mean", "median")),
            "standardize=False": form.standardize or (column.mean, column.std) == (0.0, 1.0),
        }
        broken = [limit for limit, is_kept in limits_kept.items() if not is_kept]
        if broken:
            hint = "Nothing was sent. Ask the operator of the server; do not join it again before this is explained."
            what = f"the server uses a column of {of} as the spec does not allow"
            raise InputError(what, value=column.name, limit=broken[0], hint=hint)


def convert_arrays(path: Path, terms: Terms, samples: SampleTerms, *, test: bool = False) -> SampleSet:
    """Return the arrays of a client's .npz file as this run's samples.

    Raises:
        InputError: A shape, a type or a label does not fit the terms.
    """
    if samples.transform is not None:
        raise InputError(f"{path} is no table, but this run needs one", limit=" or ".join(TABLE_ENDINGS))
    features, y, held = read_pair(path, None)
    if test and held is not None:
        features, y = held
    classes = terms.classes if samples.target == "classes" else None
    _, (labels, _) = store_targets(np.asarray(y), np.asarray(y)[:0], samples.target, str(path), classes)
    arrays = tuple(store_features(array, f"the features of {path}") for array in features)
    found = SampleSet(arrays if len(arrays) > 1 else arrays[0], labels, samples.target, terms.classes, samples.outputs)
    if found.inputs != samples.inputs:
        value, limit = (", ".join(map(str, inputs)) for inputs in (found.inputs, samples.inputs))
        raise InputError(f"the features of {path} have another shape or type", value=value, limit=limit)
    return found


def convert_samples(path: Path, raw: Any, spec: Spec, terms: Terms, *, test: bool = False) -> SampleSet:
    """Return a client's own file as this run's samples; `raw` is the table if it was read before."""
    samples = read_sample_terms(terms)
    assert samples is not None
    if isinstance(raw, Table):
        return convert_table(raw, spec, terms, samples)
    if is_table_file(path):
        return convert_table(read_table(path), spec, terms, samples)
    return convert_arrays(path, terms, samples, test=test)


def check_target(spec: Spec, samples: SampleTerms, classes: Sequence[str]) -> None:
    """Raise InputError if the targets in the terms are not those of the spec, or need another number of outputs.

    Only a loss of the user, or a vocabulary, may have more outputs than targets.
    """
    if samples.target != spec.data.target:
        raise InputError("the server's terms have other targets than its spec", value=samples.target)
    expected = len(classes) if samples.target == "classes" else samples.width or 1
    if samples.target != "tokens" and ":" not in spec.model.loss and samples.outputs != expected:
        what = "the server's terms have another number of outputs than its targets need"
        raise InputError(what, value=samples.outputs, limit=expected)


def export_samples(spec: Spec, data: DataSet, partition: Partition, to: Path) -> None:
    """Write each client's samples as a file of its own, as a host would have them, and the test set beside them.

    Rows of a table keep their text, so that a client makes the same features from its file as a simulation does.
    """
    if spec.data.label:
        form = build_format(spec.data)
        test = SHARE if spec.data.test is None else spec.data.test
        train_rows, test_rows = split_table(spec.data.name, form, test)
        export_folders(
            partition, to, lambda m, folder: write_table(train_rows.take(partition.indices[m]), folder / "data.csv")
        )
        write_table(test_rows, to / "test.csv")
        return
    train, held_out = data.train, data.test
    assert isinstance(train, SampleSet) and isinstance(held_out, SampleSet)
    export_folders(
        partition, to, lambda m, folder: _write_arrays(train.part(partition.indices[m]), folder / "data.npz")
    )
    _write_arrays(held_out, to / "test.npz")


def _write_arrays(samples: SampleSet, path: Path) -> None:
    names = ["x"] if len(samples.arrays) == 1 else [f"x{n}" for n in range(1, len(samples.arrays) + 1)]
    y = np.asarray(samples.classes)[samples.y] if samples.target == "classes" else samples.y
    arrays: dict[str, Any] = {**dict(zip(names, samples.arrays, strict=True)), "y": y}
    np.savez(path, **arrays)
