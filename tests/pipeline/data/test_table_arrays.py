"""Regression tables: layouts a user can add, splits that never change, and what is wrong with a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold

from pipeline import files
from pipeline.data import splits
from pipeline.data.known_tables import TABLES, digest
from pipeline.data.sources import MIRROR, MissingData
from pipeline.data.table_arrays import find_table
from pipeline.data.tablesets import load_table
from pipeline.errors import StudyError
from pipeline.params import Dataset
from pipeline.prepare import prepare


def layout(folder: Path, values: np.ndarray, tests: list[list[int]] | None = None, target: int = -1) -> Path:
    """A folder as the literature has them."""
    folder.mkdir(parents=True, exist_ok=True)
    target %= values.shape[1]
    np.savetxt(folder / "data.txt", values)
    np.savetxt(folder / "index_features.txt", [column for column in range(values.shape[1]) if column != target])
    np.savetxt(folder / "index_target.txt", [target], fmt="%d")
    if tests is not None:
        np.savetxt(folder / "n_splits.txt", [len(tests)], fmt="%d")
        for k, test in enumerate(tests):
            rest = sorted(set(range(len(values))) - set(test))
            np.savetxt(folder / f"index_test_{k}.txt", test, fmt="%d")
            np.savetxt(folder / f"index_train_{k}.txt", rest, fmt="%d")
    return folder


def numbers(rows: int = 20, columns: int = 4) -> np.ndarray:
    return np.random.RandomState(0).normal(size=(rows, columns))


def of_folder(folder: str | Path, **keys: Any) -> Dataset:
    return Dataset(**{"name": "own", "kind": "table", "folder": str(folder), "splits": "kfold", "folds": 4, **keys})


def of_file(file: Path, **keys: Any) -> Dataset:
    return Dataset(**{"name": "own", "kind": "table", "file": str(file), "splits": "kfold", "folds": 4, **keys})


def test_a_folder_of_ones_own_goes_through_prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = load_diabetes(return_X_y=True)
    values = np.column_stack([x, y])
    prepare(of_folder(layout(tmp_path / "diabetes", values)), "stop")
    table = load_table("data/own")
    assert table.x.dtype == table.y.dtype == torch.float64
    np.testing.assert_array_equal(table.x, x)
    np.testing.assert_array_equal(table.y, y)
    assert torch.cat(table.tests).sort().values.tolist() == list(range(442))
    assert table.summary["digest"] == digest(values) and table.summary["rows"] == 442


def test_the_mirror_gives_any_folder_of_that_layout_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout(tmp_path / "uci" / "naval-propulsion-plant", numbers(), target=1)
    monkeypatch.setenv(MIRROR, str(tmp_path))
    found = find_table(of_folder("naval-propulsion-plant"))
    np.testing.assert_array_equal(found.x, numbers()[:, [0, 2, 3]])
    np.testing.assert_array_equal(found.y, numbers()[:, 1])


def test_standard_splits_are_those_of_the_index_files(tmp_path: Path) -> None:
    tests = [[3, 1], [19, 0, 7]]
    found = find_table(of_folder(layout(tmp_path / "own", numbers(), tests), splits="standard", folds=None))
    assert found.tests == [[1, 3], [0, 7, 19]]


def test_the_literatures_splits_are_drawn_again_from_their_seed() -> None:
    """The first numbers of index_test_0.txt of its yacht and boston folders."""
    assert {121, 115, 286} <= set(splits.standard(308)[0])
    assert [len(test) for test in splits.standard(506)] == [51] * 20
    assert len(splits.standard(9568)[19]) == 957


def test_folds_are_scikit_learns() -> None:
    expected = [test.tolist() for _, test in KFold(10, shuffle=True, random_state=splits.SEED).split(np.zeros(506))]
    assert splits.kfold(506, 10) == expected


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("target", ["strength", 2])
def test_a_csv_file_with_a_heading(tmp_path: Path, separator: str, target: str | int) -> None:
    text = "\n".join(["a,b,strength,c", "1,2,3,4", "5,6,7,8", "1e1,2,-3.5,4", "", "0,0,0,0"])
    (tmp_path / "t.csv").write_text("\ufeff" + text.replace(",", separator))
    found = find_table(of_file(tmp_path / "t.csv", target=target))
    assert found.y.tolist() == [3, 7, -3.5, 0]
    assert found.x[2].tolist() == [10, 2, 4]


def test_a_csv_file_without_a_heading(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2\n3,4\n5,6\n7,9\n")
    assert find_table(of_file(tmp_path / "t.csv", target=0)).y.tolist() == [1, 3, 5, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,\n", r"line 3, column 2 \(b\): the value is missing"),
        ("a,b\n1,2\n?,4\n", r"line 3, column 1 \(a\): the value is missing"),
        ("a,b\n1,nan\n3,4\n", r"line 2, column 2 \(b\): the value is missing"),
        ("a,b\n1,2\n3,inf\n", r"line 3, column 2 \(b\): 'inf' is not a finite number"),
        ("a,b\n1,2\nred,4\n", r"line 3, column 1 \(a\): 'red' is not a finite number"),
        ("a,b\n1,2\n1_0,4\n", "'1_0' is not a finite number"),
        ("a,b\n1,2\n3\n", "line 3 has 1 columns, expected 2"),
        ("a,b\n1,2\n3,4,5\n", "line 3 has 3 columns, expected 2"),
        ("", "no rows"),
        ("a,b\n", "no rows"),
        ("a,b\n1,2\n3,2\n4,2\n5,2\n", "the target, column b, is 2 in every row"),
        ("a,b\n1,2\n3,4\n", "4 folds, but .*t.csv has only 2 rows"),
        ("b\n1\n2\n3\n4\n", "no feature column"),
        ("a,c\n1,2\n3,4\n", "'b' is not a column of .*t.csv, which has a, c"),
        ("1,2\n3,4\n", "'b' is not a column of .*no heading"),
    ],
)
def test_a_bad_csv_file_is_named_with_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(StudyError, match=message) as caught:
        find_table(of_file(tmp_path / "t.csv", target="b"))
    assert "t.csv" in str(caught.value)


def test_many_bad_cells_are_counted(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "x,y\n" * 10)
    with pytest.raises(StudyError, match="and 15 more"):
        find_table(of_file(tmp_path / "t.csv", target="b"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(StudyError, match=r"t\.csv: not a text file"):
        find_table(of_file(tmp_path / "t.csv", target=0))


def test_a_target_out_of_range(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")
    with pytest.raises(StudyError, match=r"own\.target: column 4 is out of range; .*columns 0 to 1"):
        find_table(of_file(tmp_path / "t.csv", target=4))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("index_target.txt", "4", "index_target.txt: column 4 is out of range; data.txt has columns 0 to 3"),
        ("index_target.txt", "1 2", "index_target.txt: expected one column"),
        ("index_target.txt", "0", "index_features.txt: column 0 is the target"),
        ("index_features.txt", "0 9", "index_features.txt: column 9 is out of range"),
        ("index_features.txt", "0 0", "names a column twice"),
        ("index_features.txt", "0 1.5", "expected whole numbers"),
        ("n_splits.txt", "0", "n_splits.txt: expected one number above 0"),
        ("index_test_0.txt", "1 2", "index_train_0.txt and index_test_0.txt are not a partition"),
        ("index_test_0.txt", "25", "not a partition of the rows 0 to 19"),
        ("data.txt", "1 2 3 4\n1 2 x 4", r"data\.txt: line 2, column 3: 'x'"),
    ],
)
def test_a_bad_file_of_a_folder_is_named(tmp_path: Path, file: str, text: str, message: str) -> None:
    folder = layout(tmp_path / "own", numbers(), [[3, 1]])
    (folder / file).write_text(text)
    with pytest.raises(StudyError, match=message):
        find_table(of_folder(folder, splits="standard", folds=None))


def test_a_missing_index_file_is_named(tmp_path: Path) -> None:
    folder = layout(tmp_path / "own", numbers(), [[3, 1], [2]])
    (folder / "index_train_1.txt").unlink()
    with pytest.raises(StudyError, match=r"index_train_1\.txt: cannot be read \(No such file"):
        find_table(of_folder(folder, splits="standard", folds=None))


def test_a_constant_feature_is_noted_and_kept(tmp_path: Path) -> None:
    values = numbers()
    values[:, 1] = 7
    found = find_table(of_folder(layout(tmp_path / "own", values)))
    assert found.x.shape == (20, 3)
    assert found.summary["notes"] == [
        "column 1 (counted from 0) is the same in every row: it is zero after standardisation and tells nothing"
    ]


def test_the_files_checksum_in_params_is_compared(tmp_path: Path) -> None:
    folder = layout(tmp_path / "own", numbers())
    right = files.sha256(folder / "data.txt")
    find_table(of_folder(folder, sha256=right))
    with pytest.raises(StudyError, match=rf"data\.txt: its SHA-256 is {right}, datasets.own.sha256 says {'0' * 64}"):
        find_table(of_folder(folder, sha256="0" * 64))


def test_an_altered_known_table_in_the_mirror_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a registry could help: nothing is fetched."""
    layout(tmp_path / "uci" / "yacht", numbers())
    monkeypatch.setenv(MIRROR, str(tmp_path))
    with pytest.raises(
        StudyError, match=rf"yacht/data\.txt: .* {digest(numbers())}, .*{TABLES['yacht'].digest}"
    ) as caught:
        find_table(of_folder("yacht"), cache=tmp_path / "cache")
    assert not isinstance(caught.value, MissingData) and not (tmp_path / "cache").exists()


def test_a_known_table_in_the_mirror_has_the_known_target_and_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = numbers(rows=40)
    yacht = replace(TABLES["yacht"], digest=digest(values), columns=4)
    monkeypatch.setitem(TABLES, "yacht", yacht)
    monkeypatch.setenv(MIRROR, str(tmp_path))
    folder, entry = tmp_path / "uci" / "yacht", of_folder("yacht", splits="standard", folds=None)
    layout(folder, values, splits.standard(40))
    assert find_table(entry).tests == splits.standard(40)
    layout(folder, values, splits.standard(40), target=0)
    with pytest.raises(StudyError, match=r"name column 0 as target .* in this data set column 3 is the target"):
        find_table(entry)
    layout(folder, values, splits.standard(40)[::-1])
    with pytest.raises(StudyError, match="are not the literature's splits"):
        find_table(entry)
    assert find_table(replace(entry, folder=str(folder))).tests == splits.standard(40)[::-1]


@pytest.mark.parametrize("column", [1, 3], ids=["feature", "target"])
def test_a_number_beyond_float32_is_refused(tmp_path: Path, column: int) -> None:
    values = numbers()
    values[3, column] = 1e39
    with pytest.raises(StudyError, match=rf"column {column} .* has an entry of 1e\+39; networks compute in float32"):
        find_table(of_folder(layout(tmp_path / "own", values)))


def test_a_split_that_leaves_nothing_to_learn_from_is_refused(tmp_path: Path) -> None:
    folder = layout(tmp_path / "own", numbers(), [[0, 1], list(range(19))])
    with pytest.raises(StudyError, match=r"part 1 of its splits tests on 19 of 20 rows"):
        find_table(of_folder(folder, splits="standard", folds=None))


def test_a_path_that_leads_nowhere_is_missing_data(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"own\.folder: there is no .*nowhere"):
        find_table(of_folder(tmp_path / "nowhere"))
    with pytest.raises(MissingData, match=r"own\.file: there is no .*nowhere\.csv"):
        find_table(of_file(tmp_path / "nowhere.csv", target=0))


def test_an_unknown_name_says_where_the_folder_could_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MIRROR, raising=False)
    with pytest.raises(
        MissingData,
        match=r"(?s)MNVI_DATA_MIRROR is not set.*uci/protein with data.txt, index_.*, or datasets.own.folder",
    ):
        find_table(of_folder("protein"))


def test_the_checksum_is_of_the_numbers_not_of_their_spelling() -> None:
    assert digest(np.array([[1.0, -0.0]])) == digest(np.array([[1, 0]]))
    assert digest(np.zeros((2, 3))) != digest(np.zeros((3, 2)))
    assert digest(np.array([[1.0, 2.0]])) != digest(np.array([[2.0, 1.0]]))
