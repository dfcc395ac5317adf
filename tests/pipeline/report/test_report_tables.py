"""The paper's tables as data, the rule by which a figure is reproduced, and the tables as Markdown."""

import math
import re

import pytest

from pipeline.errors import StudyError
from pipeline.report import markdown, paper, tables, wording
from pipeline.report.paper import Printed
from pipeline.report.results import Score, Scores
from pipeline.report.tables import reproduced


def scores(data="boston", method="mnvi", mean=-2.43, std=0.02, **changes):
    regression = Scores(
        cell=f"{data}-{method}",
        kind="regression",
        data=data,
        experiment=data,
        network="mlp",
        method=method,
        complete=True,
        runs=20,
        folds=10,
        metrics={"log_likelihood": Score(mean, std)},
    )
    return Scores(**{**vars(regression), **changes})


def images(network="lenet", data="mnist", method="mnvi", **metrics):
    found = {name: Score(*value) for name, value in metrics.items()}
    return scores(data, method, kind="classification", network=network, folds=None, runs=4, metrics=found)


def only(records, **wanted):
    (found,) = [one for one in records if all(getattr(one, key) == value for key, value in wanted.items())]
    return found


def test_paper_has_every_entry_of_both_tables():
    assert len(paper.TABLE_1) == 6 * 7
    assert len(paper.TABLE_2) == 4 * 4 + 2
    assert sum(map(len, paper.TABLE_2.values())) == 142  # 18 rows of 9, less the dashes


def test_paper_sums_as_the_printed_columns_do():
    # A digit that slips changes a sum; these were added up from the printed tables.
    assert sum(entry.mean for entry in paper.TABLE_1.values()) == pytest.approx(-62.01, abs=1e-6)
    misclassified = sum(100 * row["misclassification"].mean for row in paper.TABLE_2.values())
    assert misclassified == pytest.approx(225.20, abs=1e-6)


def test_percent_and_powers_of_ten_become_fractions():
    row = paper.TABLE_2["mnist", "lenet", "mnvi"]
    assert (row["misclassification"].mean, row["misclassification"].std) == (0.0055, 0.0003)
    assert (row["ece"].mean, row["aumrc"].mean) == (0.00191, 8.33e-5)
    assert paper.TABLE_2["cifar10", "all_cnn", "mnvi"]["ece"].mean == 0.0492


def test_misprinted_counts_are_corrected_and_kept():
    entry = paper.TABLE_2["cifar10", "all_cnn", "mnvi"]["parameters"]
    assert (entry.mean, entry.text, entry.corrected) == (1_370_989, "2.739", True)
    assert paper.TABLE_2["cifar100", "resnet18", "mnvi"]["parameters"].mean == 11_224_487


def test_what_is_odd_about_the_papers_figure_is_said_where_nothing_was_run_too():
    corrected = {one.data: one for one in tables.table_2([]) if one.paper and one.paper.corrected}
    assert sorted(corrected) == ["cifar10", "cifar100"]
    assert corrected["cifar10"].notes == ("not run here", "the paper prints 2.739e6, which is a misprint")
    odd = [one for one in tables.table_1([]) if (one.data, one.method) == ("kin8", "mc_mfvi")]
    assert [one.notes for one in odd] == [("not run here", "the paper's figure is out of line with other sources")]


@pytest.mark.parametrize(
    ("metric", "mean", "std", "expected"),
    [
        ("log_likelihood", -2.43, 0.0, True),
        ("log_likelihood", -2.47, 0.0, True),  # exactly two standard deviations
        ("log_likelihood", -2.4701, 0.0, False),
        ("log_likelihood", -2.4701, 0.003, True),  # ours widens what is allowed
        ("log_likelihood", -2.4701, None, False),
        ("log_likelihood", 5.0, 0.0, True),  # better
        ("log_likelihood", None, None, False),
        ("nll", -2.39, 0.0, True),
        ("nll", -2.3899, 0.0, False),
        ("nll", -9.0, 0.0, True),
        ("inference_ms", 1000.0, 0.0, None),
    ],
)
def test_reproduced_is_two_combined_deviations_or_better(metric, mean, std, expected):
    printed = Printed(-2.43, 0.02, "-2.43 ± 0.02", 2, 0)
    assert reproduced(metric, mean, std, printed) is expected


def test_both_deviations_are_combined():
    printed = Printed(0.0, 0.3, "0.0 ± 0.3", 1, 0)
    assert reproduced("log_likelihood", -2 * math.hypot(0.3, 0.4), 0.4, printed) is True
    assert reproduced("log_likelihood", -2 * math.hypot(0.3, 0.4) - 1e-3, 0.4, printed) is False


def test_fewer_parameters_are_another_network_and_not_better():
    lenet = paper.TABLE_2["mnist", "lenet", "deterministic"]["parameters"]
    assert reproduced("parameters", 1_111_946, None, lenet) is True
    assert reproduced("parameters", 900_000, None, lenet) is False
    all_cnn = paper.TABLE_2["cifar10", "all_cnn", "mnvi"]["parameters"]
    assert reproduced("parameters", 1_370_989, None, all_cnn) is True
    assert reproduced("parameters", 1_370_990, None, all_cnn) is False


def test_every_place_of_the_tables_is_there_when_nothing_ran():
    first, second = tables.table_1([]), tables.table_2([])
    assert (len(first), len(second)) == (42, 142)
    for record in first + second:
        assert (record.mean, record.complete, record.reproduced, record.status) == (None, False, None, "not-run")
        assert record.as_json()["note"].startswith("not run here")


def test_what_ran_stands_in_its_place():
    record = only(tables.table_1([scores()]), data="boston", method="mnvi")
    written = record.as_json()
    assert (written["mean"], written["paper_mean"], written["paper_std"]) == (-2.43, -2.43, 0.02)
    assert (written["runs"], written["folds"], written["complete"], written["reproduced"]) == (20, 10, True, True)
    assert written["note"] == ""


def test_fewer_runs_are_told_and_still_judged():
    record = only(tables.table_1([scores(runs=4)]), data="boston", method="mnvi")
    assert record.reproduced is True
    assert record.notes == ("4 of 20 runs",)


def test_what_did_not_run_to_the_end_is_not_judged():
    record = only(tables.table_1([scores(complete=False)]), data="boston", method="mnvi")
    assert (record.status, record.reproduced, record.notes) == ("unfinished", None, ("not run to the end here",))


def test_missing_data_are_told_with_their_reason():
    record = only(tables.table_1([scores(missing="no source", metrics={}, runs=0)]), data="boston", method="mnvi")
    assert (record.status, record.mean, record.notes) == ("not-run", None, ("not run here: no source",))


def test_a_figure_that_is_not_finite_is_not_reproduced():
    record = only(tables.table_1([scores(mean=None, std=None)]), data="boston", method="mnvi")
    assert (record.reproduced, record.mean, record.notes) == (False, None, ("not a finite number",))


def test_a_difference_below_the_printed_digits_is_told():
    record = only(tables.table_1([scores("power", mean=-2.863, std=0.001)]), data="power", method="mnvi")
    assert (record.reproduced, record.notes) == (False, ("the same when rounded as printed",))


def test_metrics_and_rows_outside_the_paper_are_added():
    found = tables.table_2([images(misclassification=(0.0055, 0.0), auroc_fashion_mnist=(0.98, 0.01))])
    record = only(found, metric="auroc_fashion_mnist")
    assert (record.paper, record.reproduced, record.notes) == (None, None, ("not in the paper",))
    further = only(tables.table_1([scores(method="smfvi")]), method="smfvi")
    assert (further.mean, further.paper) == (-2.43, None)


def test_a_second_experiment_in_the_same_place_gets_a_row_of_its_own():
    both = [scores(complete=False, experiment="short"), scores(experiment="long")]
    found = [one for one in tables.table_1(both) if (one.data, one.method) == ("boston", "mnvi")]
    assert [(one.complete, one.variant) for one in found] == [(True, ""), (False, "short")]
    assert "| MNVI (short) |" in markdown.table_1(tables.table_1(both))


def test_markdown_shows_ours_beside_the_papers_with_a_mark():
    text = markdown.table_1(tables.table_1([scores(mean=-2.4341, runs=4), scores("wine", mean=-1.5)]))
    row = next(line for line in text.splitlines() if line.startswith("| MNVI "))
    assert "−2.434 ± 0.020 (−2.43 ± 0.02) ✓<br>4 of 20 runs" in row
    assert "−1.500 ± 0.020 (−0.96 ± 0.01) ✗" in row
    assert "not run here (−0.37 ± 0.02)" in row
    assert row.count(" | ") == 7


def test_markdown_of_table_2_is_in_the_papers_units():
    text = markdown.table_2(
        tables.table_2([images(misclassification=(0.00561, 0.0002), ece=(0.0019, 0.0003), parameters=(1_114_027, 0))])
    )
    assert "| 0.56 ± 0.02 (0.55 ± 0.03) ✓ |" in text
    assert "1.90 ± 0.30 (1.91 ± 0.30) ✓" in text
    assert "1,114,027 (1.114e6) ✓" in text
    assert "not run here (1,370,989)<br>the paper prints 2.739e6, which is a misprint |" in text
    assert "not run here (1.370e6) |" in text


def test_one_run_has_no_deviation():
    record = only(tables.table_1([scores(runs=1, std=None)]), data="boston", method="mnvi")
    assert wording.ours(record) == "−2.430"


def test_a_cell_without_a_whole_run_says_so():
    record = only(tables.table_1([scores(mean=None, runs=0, failed=20)]), data="boston", method="mnvi")
    text = markdown.table_1([record])
    assert record.status == tables.DIFFERS and "no complete run" in text and "20 networks failed" in text
    assert "not run here" not in text.partition("Ours ±")[0]


def test_a_cell_with_failed_networks_is_not_reproduced_however_good_the_others_are():
    record = only(tables.table_1([scores(mean=0.0, runs=19, failed=3)]), data="boston", method="mnvi")
    assert record.reproduced is False and record.status == tables.DIFFERS
    assert "3 networks failed" in markdown.table_1([record]) and "19 of 20 runs" in markdown.table_1([record])


def test_a_deviation_over_splits_is_told_and_so_is_the_number_of_rows():
    record = only(tables.table_1([scores(runs=1, deviation_over="splits", rows=1599)]), data="boston", method="mnvi")
    text = markdown.table_1([record])
    assert "−2.430 ± 0.020" in text and "± over splits" in text and "boston (N = 1,599)" in text
    assert record.as_json()["rows"] == 1599


def test_a_bar_in_a_reason_does_not_break_the_table():
    text = markdown.table_1(tables.table_1([scores(missing="a | b\nc", metrics={}, runs=0)]))
    assert "a \\| b c" in text


PAGE = "# Title\n\n<!-- table1 -->\nold\n<!-- /table1 -->\n\nbetween\n\n<!-- table2 --><!-- /table2 -->\nend\n"


def test_page_is_filled_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    for _ in range(2):  # the second time changes nothing
        markdown.fill_page(page, {"table1": "| a |\n", "table2": "| b |\n"})
        assert page.read_text() == (
            "# Title\n\n<!-- table1 -->\n\n| a |\n\n<!-- /table1 -->\n\nbetween\n\n"
            "<!-- table2 -->\n\n| b |\n\n<!-- /table2 -->\nend\n"
        )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PAGE.replace("<!-- /table2 -->", ""), "<!-- /table2 -->"),
        ("nothing", "<!-- table1 -->, <!-- /table1 -->, <!-- table2 -->, <!-- /table2 -->"),
        (PAGE + "<!-- table1 -->", "<!-- table1 -->"),
        ("<!-- /table1 --><!-- table1 --><!-- table2 --><!-- /table2 -->", "stands before"),
    ],
)
def test_page_without_its_marks_is_left_alone(tmp_path, text, named):
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(StudyError, match=re.escape(named)):
        markdown.fill_page(page, {"table1": "a", "table2": "b"})
    assert page.read_text() == text


def test_page_may_have_the_marks_of_one_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table2 --><!-- /table2 -->")
    markdown.fill_page(page, {"table1": "a", "table2": "b"})
    assert page.read_text() == "<!-- table2 -->\n\nb\n\n<!-- /table2 -->"
